#include "agent/builder/steps.hpp"

#include <fcntl.h>
#include <grp.h>
#include <linux/magic.h>
#include <sys/capability.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"

namespace spc::agent {
namespace {

/// Root's, or the user's whose container it is.
Result<UniqueFd> make_directory(int parent, const std::string& name, mode_t mode, uid_t uid = 0,
                                gid_t gid = 0) {
  SPC_TRY(check(::mkdirat(parent, name.c_str(), mode), "make directory " + name));
  SPC_TRY(check(::fchownat(parent, name.c_str(), uid, gid, AT_SYMLINK_NOFOLLOW),
                "change the owner of directory " + name));
  return open_path(parent, name);
}

/// Overlayfs takes the top of a layer without what is mounted in it, and so would show what those
/// mounts cover. The kernel marks a mount as expired if nothing uses it, children included; the
/// mark has no effect here.
Result<void> refuse_mounts_in(int workspace, const std::string& layer) {
  SPC_TRY(check(::fchdir(workspace), "enter the workspace"));
  if (::umount2(layer.c_str(), MNT_EXPIRE) != 0 && errno == EAGAIN) return {};
  return Error(ErrorKind::refused,
               "use the directory as an image: a file system is mounted below it");
}

}  // namespace

Result<DetachedMount> copy_directory(int lead) {
  TaskMessage message;
  const auto directory = SPC_TRY(receive_paths(lead, message, 1));
  auto tree = SPC_TRY(clone_tree(directory.empty() ? -1 : directory.front().get(), "",
                                 MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  struct statfs status {};
  SPC_TRY(check(::fstatfs(tree.get(), &status), "stat the image directory"));
  // Not on /proc and the like either: what they show depends on who reads, and overlayfs reads for
  // the tasks. And of overlays the kernel stacks two.
  if ((status.f_flags & ST_NOEXEC) != 0 || status.f_type == OVERLAYFS_SUPER_MAGIC)
    return Error(ErrorKind::refused,
                 "use the directory as an image: its file system does not allow executables, or is "
                 "overlayfs");
  return tree;
}

Result<UniqueFd> make_workspace(const BuildOrder& order, DetachedMount kept) {
  auto tmpfs = SPC_TRY(new_tmpfs(
      order.tmpfs_size, 0, 0,
      order.is(TaskMessage::start_hooks | TaskMessage::start_directory) ? "0711" : "0700"));
  auto place = SPC_TRY(open_path(AT_FDCWD, SPC_RUN_DIR));
  SPC_TRY(attach(std::move(tmpfs), place.get()));
  auto workspace = SPC_TRY(open_path(AT_FDCWD, SPC_RUN_DIR));
  for (const char* name : {"root", "empty"}) SPC_TRY(make_directory(workspace.get(), name, 0755));
  const auto writable = SPC_TRY(make_directory(workspace.get(), "writable", 0700));
  if (order.is(TaskMessage::start_hooks))
    SPC_TRY(make_directory(workspace.get(), "hooks", 0700, order.uid, order.gid));
  if (kept) {
    SPC_TRY(attach(std::move(kept), writable.get()));
    return workspace;
  }
  SPC_TRY(make_directory(writable.get(), "work", 0755));
  SPC_TRY(make_directory(writable.get(), "up", 0755, order.uid, order.gid));  // the container's /
  return workspace;
}

Result<void> attach_layers(BuildOrder& order, std::vector<DetachedMount> lower, int workspace,
                           TaskMessage& ready) {
  ready.layers_served = static_cast<std::uint32_t>(order.image.served.size());
  for (ServedLayer& layer : order.image.served)
    lower.push_back(SPC_TRY(mount_served(layer, order)));
  for (DetachedMount& layer : lower) {
    const std::string name = std::to_string(ready.layers++);
    const auto place = SPC_TRY(make_directory(workspace, name, 0700));
    SPC_TRY(attach(std::move(layer), place.get()));
    if (order.is(TaskMessage::start_directory)) SPC_TRY(refuse_mounts_in(workspace, name));
  }
  return {};
}

/// Overlayfs works with the credentials of who mounts it: with the user's. So no copy of a file
/// gets an owner, or a mode, that the user himself could not give it, whatever a server says of the
/// file.
Result<void> act_as_user(const BuildOrder& order, int lead) {
  const pid_t agent = ::getppid();
  static std::array<gid_t, NGROUPS_MAX> groups;
  socklen_t size = sizeof groups;
  SPC_TRY(check(::getsockopt(lead, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size),
                "ask for the user's groups"));
  SPC_TRY(check(::setgroups(size / sizeof(gid_t), groups.data()), "take the user's groups"));
  ::setfsgid(order.gid);
  ::setfsuid(order.uid);  // and with root's go the capabilities over files
  stay_with(agent);       // which the kernel has forgotten
  return {};
}

/// With an overlay of its own: that of the writable layer, whose mounter has CAP_DAC_OVERRIDE, asks
/// this one, which has the user's rights alone, at each access. `0`: the directory; overlayfs wants
/// two layers where there is no upper one.
Result<void> cover_directory() {
  SPC_TRY(own(::open("0", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "read the image directory"));
  return check(::mount("overlay", "0", "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV,
                       "lowerdir=0:empty,redirect_dir=nofollow"),
               "mount the image directory");
}

/// One overlay over all layers, by names relative to the workspace: no user's string and no length
/// limit in sight. redirect_dir: without it rename(2) of a directory of the image fails with EXDEV,
/// and dpkg, pip and mv with it. index, of what is kept: makes the kernel refuse an upper directory
/// that another overlay has, whatever has become of its agents; that one may just be ending.
Result<UniqueFd> mount_overlay(const BuildOrder& order, int lead, std::size_t layers,
                               int workspace) {
  std::string options = order.kept ? "index=on,lowerdir=" : "index=off,lowerdir=";
  // Overlayfs wants a lower layer even for an image that has none.
  if (layers == 0) options += "empty:";
  while (layers-- > 0) options += std::to_string(layers) + ":";
  options.back() = ',';
  options += "upperdir=writable/up,workdir=writable/work,redirect_dir=on,metacopy=off";
  SPC_TRY(check(::fchdir(workspace), "enter the workspace"));
  SPC_TRY(act_as_user(
      order, lead));  // but for the directories of overlayfs itself, which the kernel gives mode 0
  if (order.is(TaskMessage::start_directory)) SPC_TRY(cover_directory());
  cap_t capabilities = ::cap_get_proc();  // never freed: the process ends soon
  ::cap_set_flag(capabilities, CAP_EFFECTIVE, 1, std::array{CAP_DAC_OVERRIDE}.data(), CAP_SET);
  SPC_TRY(check(::cap_set_proc(capabilities), "raise a capability"));
  for (int attempt = 0;
       ::mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options.c_str()) != 0;
       ++attempt) {
    const int failed = errno;
    if (failed == EBUSY && attempt < 100 && ::usleep(20'000) == 0) continue;
    return Error::from_errno(
        failed, order.kept && failed != EBUSY ? "mount overlay in the store" : "mount overlay");
  }
  return open_path(workspace, "root");
}

}  // namespace spc::agent
