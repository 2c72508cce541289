#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "hook_engine/enroot_mount/mount.hpp"

namespace spc {
namespace {

/// mount(2) and umount2(2) take paths only, and these lead to the very place that was opened.
std::string path_of(const UniqueFd& opened) {
  return "/proc/self/fd/" + std::to_string(opened.get());
}

/// What a mount of another user namespace has it must keep, or the kernel refuses the change.
std::uint64_t locked_attributes(int mount) {
  struct statvfs status {};
  if (::fstatvfs(mount, &status) != 0) return 0;
  std::uint64_t attributes = 0;
  for (const auto& [flag, attribute] :
       {std::pair<unsigned long, std::uint64_t>{ST_RDONLY, MOUNT_ATTR_RDONLY},
        {ST_NOSUID, MOUNT_ATTR_NOSUID},
        {ST_NODEV, MOUNT_ATTR_NODEV},
        {ST_NOEXEC, MOUNT_ATTR_NOEXEC},
        {ST_NODIRATIME, MOUNT_ATTR_NODIRATIME}}) {
    if ((status.f_flag & flag) != 0) attributes |= attribute;
  }
  return attributes;
}

std::uint64_t attributes_of(unsigned long flags) {
  std::uint64_t attributes = 0;
  if ((flags & MS_RDONLY) != 0) attributes |= MOUNT_ATTR_RDONLY;
  if ((flags & MS_NOSUID) != 0) attributes |= MOUNT_ATTR_NOSUID;
  if ((flags & MS_NODEV) != 0) attributes |= MOUNT_ATTR_NODEV;
  if ((flags & MS_NOEXEC) != 0) attributes |= MOUNT_ATTR_NOEXEC;
  if ((flags & MS_NODIRATIME) != 0) attributes |= MOUNT_ATTR_NODIRATIME;
  return attributes;
}

Result<void> set_attributes(int mount, std::uint64_t attributes, bool recursive) {
  if (attributes == 0) return {};
  mount_attr change{};
  change.attr_set = attributes;
  if (::mount_setattr(mount, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0U), &change,
                      sizeof change) == 0)
    return {};
  return Error::from_errno(errno, "set the flags");
}

Result<void> attach(int tree, const UniqueFd& target) {
  if (::move_mount(tree, "", target.get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) ==
      0)
    return {};
  return Error::from_errno(errno, "attach");
}

Result<UniqueFd> bind(const OpenedMount& mount) {
  const unsigned long flags = mount.line.flags;
  const unsigned recursive = (flags & MS_REC) != 0 ? AT_RECURSIVE : 0U;
  UniqueFd tree(::open_tree(mount.source.get(), "",
                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | recursive));
  if (!tree) return Error::from_errno(errno, "copy the mount");
  SPC_TRY(set_attributes(tree.get(), locked_attributes(tree.get()) | attributes_of(flags), false));
  SPC_TRY(attach(tree.get(), mount.target));
  return tree;
}

/// Also what this tool knows nothing of, such as overlay: the kernel says what is allowed.
Result<UniqueFd> mount_new(const OpenedMount& mount) {
  const EnrootFstabLine& line = mount.line;

  if (::mount(line.source.c_str(), path_of(mount.target).c_str(), line.type.c_str(),
              line.flags & ~static_cast<unsigned long>(MS_REC),
              line.data.empty() ? nullptr : line.data.c_str()) != 0) {
    return Error::from_errno(errno, "mount");
  }
  return UniqueFd();
}

/// Of a mount that is attached, or of what is on top of the target.
Result<void> set_propagation(const UniqueFd& mount, unsigned long propagation) {
  if (propagation == 0) return {};
  if (::mount(nullptr, path_of(mount).c_str(), nullptr, propagation, nullptr) == 0) return {};
  return Error::from_errno(errno, "set the propagation");
}

}  // namespace

Result<void> mount_alone(const OpenedMount& mount) {
  const EnrootFstabLine& line = mount.line;
  if (line.detach) {
    if (::umount2(path_of(mount.target).c_str(), MNT_DETACH) != 0)
      return Error::from_errno(errno, "unmount");
    return {};
  }
  if (!line.mounts()) return set_propagation(mount.target, line.propagation);
  if ((line.flags & MS_MOVE) != 0) return attach(mount.source.get(), mount.target);
  if ((line.flags & MS_REMOUNT) != 0) {
    return set_attributes(mount.target.get(),
                          locked_attributes(mount.target.get()) | attributes_of(line.flags), false);
  }
  const auto made = SPC_TRY((line.flags & MS_BIND) != 0 ? bind(mount) : mount_new(mount));
  return set_propagation(made ? made : mount.target, line.propagation);
}

}  // namespace spc
