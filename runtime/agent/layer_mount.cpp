// Loop devices of layers, and their mounts.

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "agent/builder.hpp"
#include "agent/privilege.hpp"
#include "protocol/layer.hpp"

namespace spc::agent {

namespace {

/// Attribute of a layer's file: the number of its last loop device. Copies share 31 attributes,
/// since a file must not collect one for each user of the node. Owners that share one may overwrite
/// each other's device, which only costs sharing.
constexpr char kHint[] = "trusted.spank-container.loop";

Result<UniqueFd> open_loop(int number) {  // ENODEV if a pod lacks the device: FUSE serves the layer
  UniqueFd device(::open(("/dev/loop" + std::to_string(number)).c_str(), O_RDONLY | O_CLOEXEC));
  const int why = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? errno : ENODEV;
  return device ? Result(std::move(device)) : Error::from_errno(why, "open a loop device");
}

/// Returns an unnamed file with the layer's own blocks except for the block with the list of
/// owners. The super block of squashfs 4.0 says where that list ends, and layer-verifier has
/// checked its position. EOPNOTSUPP if the layer cannot be copied; then it can be served.
Result<UniqueFd> copy_of(int layer, const LayerOwner& owner) {
  SquashfsSuper super;
  const std::uint32_t owners[]{owner.uid, owner.gid};
  const bool has_two = ::pread(layer, &super, sizeof super, 0) == sizeof super &&
                       super.magic == SquashfsSuper::kMagic && super.owners == 2;
  auto copy = SPC_TRY(owner.store->new_object());
  if (has_two && ::ioctl(copy.get(), FICLONE, layer) == 0 &&
      ::pwrite(copy.get(), owners, sizeof owners,
               static_cast<off_t>(super.owner_table - sizeof owners)) == sizeof owners)
    return copy;
  return Error::from_errno(EOPNOTSUPP, "share the blocks of a layer");
}

/// Returns the device if it still serves exactly this file, read-only and from its first byte to
/// its last. Only root sets the number of a device.
UniqueFd reuse(int number, int layer_file, const std::string& name) {
  struct stat file {};
  auto device = open_loop(number);
  if (!device || ::fstat(layer_file, &file) != 0) return {};
  loop_info64 info{};
  // After the open autoclear cannot free the device, so the kernel's answer stays true.
  if (::ioctl(device->get(), LOOP_GET_STATUS64, &info) != 0) return {};
  const bool same = (name.empty() ? info.lo_inode == file.st_ino
                                  : name == reinterpret_cast<const char*>(info.lo_file_name)) &&
                    info.lo_device == file.st_dev && info.lo_offset == 0 &&
                    info.lo_sizelimit == 0 && (info.lo_flags & LO_FLAGS_READ_ONLY) != 0;
  return same ? std::move(*device) : UniqueFd();
}

Result<LoopDevice> configure_new(int control, int file, const std::string& name) {
  loop_config config{
      static_cast<unsigned>(file), 4096, {.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR}, {}};
  name.copy(reinterpret_cast<char*>(config.info.lo_file_name), LO_NAME_SIZE - 1);
  for (int attempt = 0; attempt < 256; ++attempt) {
    const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) return Error::from_errno(errno, "find a free loop device");
    auto device = SPC_TRY(open_loop(number));
    if (::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0)
      return LoopDevice{std::move(device), number, false};
    // EBUSY: another step was faster.
    if (errno != EBUSY) return Error::from_errno(errno, "set up a loop device");
  }
  return Error(ErrorKind::unavailable, "set up a loop device: no free device");
}

}  // namespace

Result<LoopDevice> loop_device_of(const LayerFile& layer, const LayerOwner& owner) {
  const std::string name = owner.store == nullptr
                               ? ""
                               : std::to_string(owner.uid) + "." + std::to_string(owner.gid) + "." +
                                     layer.digest.hex().substr(0, 40);
  const std::string hint =
      kHint + (name.empty() ? "" : std::to_string((owner.uid + std::uint64_t{2} * owner.gid) % 31));
  const auto control = SPC_TRY(own(::open("/dev/loop-control", O_RDWR | O_CLOEXEC),
                                   "open \"/dev/loop-control\"", "modprobe loop or squashfs=fuse"));
  // Steps of a node attach layers one after the other; otherwise two would not share a device. The
  // wait is short, for all layers together, because a user may have stopped a step.
  static int patience = 200;  // milliseconds
  for (; ::flock(control.get(), LOCK_EX | LOCK_NB) != 0 && patience > 0; --patience)
    ::poll(nullptr, 0, 1);
  int number = -1;
  const bool known =
      ::fgetxattr(layer.file.get(), hint.c_str(), &number, sizeof number) == sizeof number;
  if (auto device = known ? reuse(number, layer.file.get(), name) : UniqueFd())
    return LoopDevice{std::move(device), number, true};
  const UniqueFd copy = name.empty() ? UniqueFd() : SPC_TRY(copy_of(layer.file.get(), owner));
  auto fresh = SPC_TRY(configure_new(control.get(), copy ? copy.get() : layer.file.get(), name));
  // Usually it is the same device as last time. A failure to write it only costs the sharing.
  if (fresh.number != number)
    (void)::fsetxattr(layer.file.get(), hint.c_str(), &fresh.number, sizeof fresh.number, 0);
  return fresh;
}

Result<DetachedMount> new_layer(const LayerFile& layer, const LayerOwner& owner,
                                std::uint32_t& shared) {
  std::uint32_t magic = 0;
  const bool erofs = ::pread(layer.file.get(), &magic, sizeof magic, 0) == sizeof magic &&
                     magic != SquashfsSuper::kMagic;  // same decision as layer-verifier's
  const bool is_copy = owner.store != nullptr && !erofs;
  const auto loop = SPC_TRY(loop_device_of(layer, is_copy ? owner : LayerOwner{}));
  shared += loop.shared ? 1 : 0;
  auto mount = new_mount(erofs ? "erofs" : "squashfs",
                         {{"source", "/dev/loop" + std::to_string(loop.number)}, {"ro", ""}},
                         MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
  mount_attr map{.attr_set = MOUNT_ATTR_IDMAP,
                 .userns_fd = static_cast<std::uint64_t>(owner.id_map)};
  if (mount && (is_copy || owner.id_map < 0 ||
                ::mount_setattr(mount->get(), "", AT_EMPTY_PATH, &map, sizeof map) == 0))
    return mount;
  const int failed = mount ? errno : mount.error().sys_errno();
  // EINVAL: the kernel lacks the compression. Some patched ones before 6.2, without a map: EPERM.
  return Error::from_errno(failed == EINVAL || failed == EPERM ? EOPNOTSUPP : failed,
                           "mount a layer");
}

}  // namespace spc::agent
