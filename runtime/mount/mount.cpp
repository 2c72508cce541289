#include "mount/mount.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/socket.hpp"
#include "base/system_call.hpp"

namespace spc {

void MountDefaults::find_devices() {
  struct stat status {};
  if (::stat("/dev", &status) == 0) dev = status.st_dev;
  if (::stat("/dev/pts", &status) == 0) pts = status.st_dev;
}

// --- any mount ---

Result<DetachedMount> clone_tree(int source, const char* path, std::uint64_t attributes,
                                 std::uint64_t propagation, unsigned scope) {
  const std::string what = "copy a mount" + (*path == '\0' ? std::string() : " of " + quoted(path));
  auto tree =
      SPC_TRY(own(::open_tree(source, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | scope), what));
  mount_attr change{.attr_set = attributes, .propagation = propagation};
  SPC_TRY(check(::mount_setattr(tree.get(), "", scope, &change, sizeof change),
                "make a mount private"));
  return tree;
}

Result<DetachedMount> new_mount(const std::string& type, FileSystemOptions options,
                                unsigned attributes) {
  const auto context = SPC_TRY(own(::fsopen(type.c_str(), FSOPEN_CLOEXEC),
                                   "use file system " + type, "load the kernel module"));
  bool ready = true;
  for (const auto& [key, value] : options) {
    const auto form = value.empty() ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING;
    const char* const given = value.empty() ? nullptr : value.c_str();
    ready = ready && (key == nullptr || ::fsconfig(context.get(), form, key, given, 0) == 0);
  }
  ready = ready && ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  DetachedMount mount(ready ? ::fsmount(context.get(), FSMOUNT_CLOEXEC, attributes) : -1);
  if (mount) return mount;
  return Error::from_errno(errno, "mount " + type);
}

Result<DetachedMount> new_tmpfs(const MountDefaults& defaults, const char* mode,
                                const TaskMessage& source) {
  constexpr const char* kHuge[] = {"", "never", "always", "within_size", "advise", "", "", ""};
  const char* const huge = kHuge[source.source_flags / TaskMessage::source_huge_never % 8];
  auto tmpfs =
      new_mount("tmpfs",
                {{"source", "spank-container"},
                 {"size", source.size != 0 ? std::to_string(source.size) : defaults.tmpfs_size},
                 {"uid", std::to_string(defaults.uid)},
                 {"gid", std::to_string(defaults.gid)},
                 {"mode", mode},
                 {source.inodes != 0 ? "nr_inodes" : nullptr, std::to_string(source.inodes)},
                 {*huge != '\0' ? "huge" : nullptr, huge}},
                TaskMessage::attributes_of(source.source_flags) | MOUNT_ATTR_NODEV);
  const int kept[] = {tmpfs ? tmpfs->get() : -1};
  if (tmpfs && defaults.keeper >= 0) [[maybe_unused]]
    const auto sent = send_struct(defaults.keeper, char{}, kept, WhenFull::fail);
  return tmpfs;
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
                   MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | attributes);
}

Result<void> attach(DetachedMount tree, int target) {
  return check(
      ::move_mount(tree.get(), "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH),
      "attach a mount");
}

// --- a container's root ---

Result<DetachedMount> mount_source(const TaskMessage& source, int path,
                                   const MountDefaults& defaults) {
  const auto asks = [&](std::uint32_t flag) { return (source.source_flags & flag) != 0; };
  if (asks(TaskMessage::source_terminals))
    return new_mount("devpts", {{"ptmxmode", "666"}}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
  if (asks(TaskMessage::source_tmpfs)) return new_tmpfs(defaults, "0755", source);
  // Do not ask the server of a file system, which may never answer. A failure sets no number.
  struct statx status {};
  ::statx(path, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status);
  const dev_t on = ::makedev(status.stx_dev_major, status.stx_dev_minor);
  const unsigned devices = on == defaults.dev || on == defaults.pts ? 0 : MOUNT_ATTR_NODEV;
  return clone_tree(path, "", TaskMessage::attributes_of(source.source_flags) | devices,
                    asks(TaskMessage::source_unbindable) ? MS_UNBINDABLE
                    : asks(TaskMessage::source_private)  ? MS_PRIVATE
                                                         : MS_SLAVE);
}

Result<void> add_host_trees(std::vector<DetachedMount>& trees, std::uint32_t namespaces) {
  constexpr unsigned kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  const auto has = [&](std::uint32_t bit) { return (namespaces & bit) != 0; };
  trees.push_back(SPC_TRY(has(own_pid) ? new_mount("proc", {}, kQuiet)
                                       : clone_tree(AT_FDCWD, "/proc", kQuiet)));
  trees.push_back(SPC_TRY(has(own_net) ? new_mount("sysfs", {}, kQuiet | MOUNT_ATTR_RDONLY)
                                       : clone_tree(AT_FDCWD, "/sys", kQuiet | MOUNT_ATTR_RDONLY)));
  trees.push_back(SPC_TRY(clone_tree(AT_FDCWD, "/dev", MOUNT_ATTR_NOSUID)));
  return {};
}

Result<void> make_root_read_only() {
  mount_attr change{.attr_set = MOUNT_ATTR_RDONLY};
  return check(::mount_setattr(AT_FDCWD, "/", 0, &change, sizeof change),
               "make the root read-only");
}

Result<void> pivot_into(int root) {
  SPC_TRY(check(::fchdir(root), "enter the container's root"));
  SPC_TRY(check(::syscall(SYS_pivot_root, ".", "."), "pivot into the container"));
  return check(::umount2(".", MNT_DETACH), "leave the host's root");
}

}  // namespace spc
