#include "container/agent/mount.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>

namespace spc {
namespace {

/// What the kernel says of a failed step on this file-system context; errno must have been saved before.
std::string kernel_says(int context) {
  char line[256];
  const ssize_t got = ::read(context, line, sizeof line - 1);
  if (got <= 2) return {};
  return " (" + printable(std::string_view(line + 2, static_cast<std::size_t>(got - 2))) + ")";
}

Result<DetachedMount> create(int context, const char* type, unsigned attributes) {
  if (::fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    const int err = errno;
    return Error::from_errno(err, std::string("mount ") + type + kernel_says(context));
  }
  DetachedMount mount(::fsmount(context, FSMOUNT_CLOEXEC, attributes));
  if (!mount) return Error::from_errno(errno, std::string("mount ") + type);
  return mount;
}

Result<void> set_string(int context, const char* key, const char* value) {
  if (::fsconfig(context, FSCONFIG_SET_STRING, key, value, 0) != 0) {
    const int err = errno;
    return Error::from_errno(err, std::string("mount option ") + key + kernel_says(context));
  }
  return {};
}

Result<UniqueFd> open_context(const char* type) {
  UniqueFd context(::fsopen(type, FSOPEN_CLOEXEC));
  if (!context) {
    return Error::from_errno(errno, std::string("use file system ") + type).hint("load the kernel module");
  }
  return context;
}

}  // namespace

Result<DetachedMount> clone_tree(int source, const char* path, bool recursive) {
  const unsigned flags =
      OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0U) | (*path == '\0' ? AT_EMPTY_PATH : 0U);
  DetachedMount tree(::open_tree(source, path, flags));
  if (!tree) return Error::from_errno(errno, "copy a mount" + (*path == '\0' ? std::string() : " of " + quoted(path)));
  mount_attr slave{};
  slave.propagation = MS_SLAVE;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0U), &slave, sizeof slave) != 0) {
    return Error::from_errno(errno, "separate a mount from the host's");
  }
  return tree;
}

Result<void> set_attributes(const DetachedMount& tree, std::uint64_t attributes, bool recursive) {
  mount_attr attr{};
  attr.attr_set = attributes;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0U), &attr, sizeof attr) != 0) {
    return Error::from_errno(errno, "set mount flags");
  }
  return {};
}

Result<void> attach(DetachedMount tree, int target) {
  if (::move_mount(tree.get(), "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) {
    return Error::from_errno(errno, "attach a mount");
  }
  return {};
}

Result<DetachedMount> new_tmpfs(const std::string& size) {
  auto context = SPC_TRY(open_context("tmpfs"));
  SPC_TRY(set_string(context.get(), "size", size.c_str()));
  SPC_TRY(set_string(context.get(), "mode", "0700"));
  SPC_TRY(set_string(context.get(), "source", "spank-container"));
  return create(context.get(), "tmpfs", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

Result<DetachedMount> new_squashfs(const char* source, int id_map) {
  auto context = SPC_TRY(open_context("squashfs"));
  SPC_TRY(set_string(context.get(), "source", source));
  if (::fsconfig(context.get(), FSCONFIG_SET_FLAG, "ro", nullptr, 0) != 0) return Error::from_errno(errno, "mount option ro");
  auto mount = SPC_TRY(create(context.get(), "squashfs", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (id_map >= 0) {
    mount_attr attr{};
    attr.attr_set = MOUNT_ATTR_IDMAP;
    attr.userns_fd = static_cast<std::uint64_t>(id_map);
    if (::mount_setattr(mount.get(), "", AT_EMPTY_PATH, &attr, sizeof attr) != 0) {
      return Error::from_errno(errno, "map the owner of a layer").hint("squashfs can be idmapped from Linux 6.2 on");
    }
  }
  return mount;
}

}  // namespace spc
