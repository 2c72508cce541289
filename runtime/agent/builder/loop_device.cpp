#include "agent/builder/loop_device.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "agent/node/system_call.hpp"

namespace spc::agent {
namespace {

/// Attribute of a layer's file: the number of the device that served it last. For copies there are
/// 31, as a file must not collect one for each user of the node. Owners that share one may lose the
/// other's device, which only costs sharing.
constexpr char kHint[] = "trusted.spank-container.loop";

Result<UniqueFd> open_loop(int number) {
  const std::string path = "/dev/loop" + std::to_string(number);
  return own(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open " + quoted(path));
}

/// An unnamed file with the layer's own blocks but for the one that the list of owners is in: where
/// that ends the super block of squashfs 4.0 says, and layer-verifier has seen it there. What
/// cannot be copied can be served: EOPNOTSUPP.
Result<UniqueFd> copy_of(int layer, const LayerOwner& owner) {
  std::array<std::uint64_t, 7> super{};
  const std::uint32_t owners[]{owner.uid, owner.gid};
  const bool has_two = ::pread(layer, &super, sizeof super, 0) == sizeof super &&
                       static_cast<std::uint32_t>(super[0]) == SQUASHFS_MAGIC &&
                       static_cast<std::uint16_t>(super[3] >> 16) == 2;
  auto copy = SPC_TRY(owner.store->new_object());
  if (has_two && ::ioctl(copy.get(), FICLONE, layer) == 0 &&
      ::pwrite(copy.get(), owners, sizeof owners, static_cast<off_t>(super[6] - sizeof owners)) ==
          sizeof owners)
    return copy;
  return Error::from_errno(EOPNOTSUPP, "share the blocks of a layer");
}

/// The device, if it still serves exactly this file, read-only and from its first byte to its last.
/// Only root names a device.
UniqueFd reuse(int number, int layer_file, const std::string& name) {
  struct stat file {};
  auto device = open_loop(number);
  if (!device || ::fstat(layer_file, &file) != 0) return {};
  loop_info64 info{};
  // From the open on autoclear cannot free it, so what the kernel says here stays true.
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
    if (errno != EBUSY)
      return Error::from_errno(errno, "set up a loop device");  // EBUSY: another step was faster
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
  const auto control =
      SPC_TRY(own(::open("/dev/loop-control", O_RDWR | O_CLOEXEC), "open \"/dev/loop-control\""));
  // The steps of a node one after the other, else two would not share; not for long, all layers
  // together, as a user may have stopped his.
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
  // Mostly it is the same device as last time. Where it cannot be written, that only costs the
  // sharing.
  if (fresh.number != number)
    (void)::fsetxattr(layer.file.get(), hint.c_str(), &fresh.number, sizeof fresh.number, 0);
  return fresh;
}

}  // namespace spc::agent
