#include "agent/builder/mount.hpp"

#include <linux/magic.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>
#include <utility>

#include "agent/builder/loop_device.hpp"
#include "agent/node/system_call.hpp"
#include "base/socket.hpp"
#include "protocol/task.hpp"

namespace spc::agent {
namespace {

constexpr unsigned kImage = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;

/// An option without a value is a flag, one without a name is none.
using Options = std::initializer_list<std::pair<const char*, std::string>>;

Result<DetachedMount> new_mount(const char* type, Options options, unsigned attributes) {
  const auto context =
      SPC_TRY(own(::fsopen(type, FSOPEN_CLOEXEC), std::string("use file system ") + type));
  bool ready = true;
  for (const auto& [key, value] : options) {
    const auto form = value.empty() ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING;
    ready = ready &&
            (key == nullptr ||
             ::fsconfig(context.get(), form, key, value.empty() ? nullptr : value.c_str(), 0) == 0);
  }
  ready = ready && ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  DetachedMount mount(ready ? ::fsmount(context.get(), FSMOUNT_CLOEXEC, attributes) : -1);
  if (mount) return mount;
  return Error::from_errno(errno, std::string("mount ") + type);
}

int set_attributes(int tree, const char* path, unsigned scope, std::uint64_t set,
                   std::uint64_t propagation = 0, int map = 0) {
  mount_attr change{.attr_set = set,
                    .attr_clr = 0,
                    .propagation = propagation,
                    .userns_fd = static_cast<std::uint64_t>(map)};
  return ::mount_setattr(tree, path, scope, &change, sizeof change);
}

}  // namespace

Result<DetachedMount> clone_tree(int source, const char* path, std::uint64_t attributes,
                                 std::uint64_t propagation, unsigned scope) {
  const std::string what = "copy a mount" + (*path == '\0' ? std::string() : " of " + quoted(path));
  auto tree =
      SPC_TRY(own(::open_tree(source, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | scope), what));
  SPC_TRY(check(set_attributes(tree.get(), "", scope, attributes, propagation),
                "make a mount private"));
  return tree;
}

Result<void> make_root_read_only() {
  return check(set_attributes(AT_FDCWD, "/", 0, MOUNT_ATTR_RDONLY), "make a mount read-only");
}

Result<void> attach(DetachedMount tree, int target) {
  return check(
      ::move_mount(tree.get(), "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH),
      "attach a mount");
}

Result<DetachedMount> new_kernel_view(const char* type, std::uint64_t attributes,
                                      const char* option, const char* value) {
  return new_mount(type, {{option, value}}, static_cast<unsigned>(attributes));
}

Result<DetachedMount> new_tmpfs(const std::string& size, uid_t uid, gid_t gid, const char* mode,
                                unsigned attributes, std::uint64_t inodes, const char* huge) {
  auto tmpfs = new_mount("tmpfs",
                         {{"source", "spank-container"},
                          {"size", size},
                          {"uid", std::to_string(uid)},
                          {"gid", std::to_string(gid)},
                          {"mode", mode},
                          {inodes != 0 ? "nr_inodes" : nullptr, std::to_string(inodes)},
                          {*huge != '\0' ? "huge" : nullptr, huge}},
                         MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | attributes);
  const int kept[] = {
      tmpfs ? tmpfs->get()
            : -1};  // without the keeper, pages are freed in the exit of the last process
  if (tmpfs) [[maybe_unused]]
    const auto sent = send_struct(kAgentKeeper, char{}, kept, WhenFull::fail);
  return tmpfs;
}

Result<DetachedMount> new_layer(const LayerFile& layer, const LayerOwner& owner,
                                std::uint32_t& shared) {
  std::uint32_t magic = 0;
  const bool erofs = ::pread(layer.file.get(), &magic, sizeof magic, 0) == sizeof magic &&
                     magic != SQUASHFS_MAGIC;  // as layer-verifier decides
  const bool is_copy = owner.store != nullptr && !erofs;
  const auto loop = SPC_TRY(loop_device_of(layer, is_copy ? owner : LayerOwner{}));
  shared += loop.shared ? 1 : 0;
  auto mount =
      new_mount(erofs ? "erofs" : "squashfs",
                {{"source", "/dev/loop" + std::to_string(loop.number)}, {"ro", ""}}, kImage);
  if (mount &&
      (is_copy || owner.id_map < 0 ||
       set_attributes(mount->get(), "", AT_EMPTY_PATH, MOUNT_ATTR_IDMAP, 0, owner.id_map) == 0))
    return mount;
  const int failed = mount ? errno : mount.error().sys_errno();
  // A kernel that was built without the compression; or before Linux 6.2, which has no map, with
  // some patches EPERM.
  return Error::from_errno(failed == EINVAL || failed == EPERM ? EOPNOTSUPP : failed,
                           "mount a layer");
}

Result<DetachedMount> new_fuse(int device, uid_t uid, gid_t gid, unsigned attributes) {
  return new_mount("fuse",
                   {{"source", "spank-container"},
                    {"fd", std::to_string(device)},
                    {"rootmode", "40000"},
                    {"user_id", std::to_string(uid)},
                    {"group_id", std::to_string(gid)},
                    {"allow_other", ""},
                    {"default_permissions", ""}},
                   kImage | attributes);
}

}  // namespace spc::agent
