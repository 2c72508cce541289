#include "container/agent/builder.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/socket.hpp"
#include "container/agent/loop_device.hpp"
#include "container/agent/mount.hpp"

namespace spc {
namespace {

/// Measures the phases one after the other.
class Stopwatch {
 public:
  explicit Stopwatch(PhaseTimes& times) : times_(times), last_(now_us()) {}
  void lap(Phase phase) {
    const std::uint64_t moment = now_us();
    times_[static_cast<std::size_t>(phase)] = static_cast<std::uint32_t>(moment - last_);
    last_ = moment;
  }

 private:
  PhaseTimes& times_;
  std::uint64_t last_;
};

using HostTrees = std::array<DetachedMount, static_cast<std::size_t>(HostTree::count)>;

DetachedMount& tree_of(HostTrees& trees, HostTree which) { return trees[static_cast<std::size_t>(which)]; }

/// Needs SYS_CHROOT and SYS_ADMIN. The agent was started in slurmstepd's namespace; job_container/tmpfs gives the tasks
/// another one, and a tree can be copied only within the namespace it was opened in.
Result<void> join_task_namespace(int mount_namespace) {
  if (::setns(mount_namespace, CLONE_NEWNS) != 0) return Error::from_errno(errno, "join the task's mount namespace");
  return {};
}

/// /proc is a copy of the host's, not a new one: that keeps the site's hidepid.
Result<HostTrees> copy_host_trees() {
  HostTrees trees;
  tree_of(trees, HostTree::proc) = SPC_TRY(clone_tree(AT_FDCWD, "/proc", true));
  tree_of(trees, HostTree::sys) = SPC_TRY(clone_tree(AT_FDCWD, "/sys", true));
  tree_of(trees, HostTree::dev) = SPC_TRY(clone_tree(AT_FDCWD, "/dev", true));
  constexpr std::uint64_t kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  SPC_TRY(set_attributes(tree_of(trees, HostTree::proc), kQuiet, true));
  SPC_TRY(set_attributes(tree_of(trees, HostTree::sys), kQuiet | MOUNT_ATTR_RDONLY, true));
  SPC_TRY(set_attributes(tree_of(trees, HostTree::dev), MOUNT_ATTR_NOSUID, true));
  return trees;
}

Result<std::vector<DetachedMount>> copy_sources(const std::vector<BindSource>& sources) {
  std::vector<DetachedMount> trees;
  for (const BindSource& source : sources) {
    const bool recursive = (source.flags & TaskMessage::source_not_recursive) == 0;
    auto tree = SPC_TRY(clone_tree(source.path.get(), "", recursive));
    std::uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if ((source.flags & TaskMessage::source_read_only) != 0) attributes |= MOUNT_ATTR_RDONLY;
    if ((source.flags & TaskMessage::source_no_exec) != 0) attributes |= MOUNT_ATTR_NOEXEC;
    SPC_TRY(set_attributes(tree, attributes, recursive));
    trees.push_back(std::move(tree));
  }
  return trees;
}

/// From here on nothing that this process mounts is visible to the host.
Result<UniqueFd> leave_host_mounts() {
  if (::unshare(CLONE_NEWNS) != 0) return Error::from_errno(errno, "create a mount namespace");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return Error::from_errno(errno, "make mounts private");
  UniqueFd itself(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!itself) return Error::from_errno(errno, "open the mount namespace");
  return itself;
}

Result<void> make_directory(int parent, const char* name, mode_t mode) {
  if (::mkdirat(parent, name, mode) != 0) return Error::from_errno(errno, std::string("make directory ") + name);
  return {};
}

Result<void> give_to(int parent, const char* name, uid_t uid, gid_t gid, mode_t mode) {
  if (::fchownat(parent, name, uid, gid, AT_SYMLINK_NOFOLLOW) != 0 || ::fchmodat(parent, name, mode, 0) != 0) {
    return Error::from_errno(errno, std::string("prepare directory ") + name);
  }
  return {};
}

Result<UniqueFd> open_path(int parent, const char* name) {
  UniqueFd path(::openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!path) return Error::from_errno(errno, std::string("open directory ") + name);
  return path;
}

/// A tmpfs in our namespace that holds the writable layer, /tmp and the places where the layers are mounted. Overlayfs
/// before 6.13 takes only attached layers, so they are attached here; the pivot takes them out of sight.
Result<UniqueFd> make_workspace(const BuildOrder& order) {
  auto tmpfs = SPC_TRY(new_tmpfs(order.upper_size));
  auto place = SPC_TRY(open_path(AT_FDCWD, SPC_RUN_DIR));
  SPC_TRY(attach(std::move(tmpfs), place.get()));
  auto workspace = SPC_TRY(open_path(AT_FDCWD, SPC_RUN_DIR));
  SPC_TRY(make_directory(workspace.get(), "root", 0755));
  SPC_TRY(make_directory(workspace.get(), "up", 0755));  // its owner and mode are those of the container's /
  SPC_TRY(make_directory(workspace.get(), "work", 0755));
  SPC_TRY(make_directory(workspace.get(), "tmp", 0700));
  SPC_TRY(give_to(workspace.get(), "up", order.uid, order.gid, 0755));
  SPC_TRY(give_to(workspace.get(), "tmp", order.uid, order.gid, 01777));
  return workspace;
}

/// Mounts layer i at directory i of the workspace; returns how many were shared with another step.
Result<std::uint32_t> mount_layers(const BuildOrder& order, int workspace) {
  std::uint32_t shared = 0;
  for (std::size_t i = 0; i < order.image->layers.size(); ++i) {
    const LayerFile& layer = order.image->layers[i];
    const auto loop = SPC_TRY(loop_device_of(layer.digest, layer.file.get(), order.loop_table));
    shared += loop.shared ? 1 : 0;
    const std::string device = "/dev/loop" + std::to_string(loop.number);
    auto mount = SPC_TRY(new_squashfs(device.c_str(), order.id_map));
    const std::string name = std::to_string(i);
    SPC_TRY(make_directory(workspace, name.c_str(), 0700));
    const auto place = SPC_TRY(open_path(workspace, name.c_str()));
    SPC_TRY(attach(std::move(mount), place.get()));
  }
  return shared;
}

/// One overlay over all layers, by names relative to the workspace: no user's string and no length limit in sight.
/// redirect_dir: without it rename(2) of a directory of the image fails with EXDEV, and dpkg, pip and mv with it.
Result<UniqueFd> mount_overlay(const BuildOrder& order, int workspace) {
  std::string options = "lowerdir=";
  // Overlayfs wants a lower layer even for an image that has none, and two when there is no upper one.
  if (order.image->layers.empty()) {
    SPC_TRY(make_directory(workspace, "empty", 0755));
    options += "empty:";
  }
  for (std::size_t i = order.image->layers.size(); i-- > 0;) options += std::to_string(i) + ":";
  options.back() = ',';
  options += "upperdir=up,workdir=work,redirect_dir=on,metacopy=off,index=off";
  if (::fchdir(workspace) != 0) return Error::from_errno(errno, "enter the workspace");
  if (::mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    return Error::from_errno(errno, "mount overlay");
  }
  return open_path(workspace, "root");
}

/// The calling process and its namespace then see the container's root only.
Result<void> pivot_into(int root) {
  if (::fchdir(root) != 0) return Error::from_errno(errno, "enter the container's root");
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return Error::from_errno(errno, "pivot into the container");
  if (::umount2(".", MNT_DETACH) != 0) return Error::from_errno(errno, "leave the host's root");
  return {};
}

/// The leading task, inside as the user, opens each target in turn; only its descriptors are used here.
Result<void> furnish_with(const BuildOrder& order, BuiltContainer& built, HostTrees host, std::vector<DetachedMount> sources) {
  TaskMessage message;
  message.kind = TaskMessageKind::furnish;
  const int passed[] = {built.mount_namespace.get(), order.image->record.get()};
  SPC_TRY(send_struct(order.lead, message, passed));
  for (;;) {
    auto descriptors = SPC_TRY_DURING("furnishing the container", receive_struct(order.lead, message));
    if (message.kind == TaskMessageKind::furnished) {
      std::memcpy(built.for_other_tasks, message.text, sizeof message.text);
      return {};
    }
    if (message.kind == TaskMessageKind::failed) {
      message.text[sizeof message.text - 1] = '\0';
      return Error(ErrorKind::invalid, message.text);
    }
    DetachedMount* tree = nullptr;
    if (message.kind == TaskMessageKind::target && descriptors.size() == 1) {
      if (message.index < sources.size()) {
        tree = &sources[message.index];
      } else if (message.index - sources.size() < host.size()) {
        tree = &host[message.index - sources.size()];
      }
    }
    if (tree == nullptr || !*tree) return Error(ErrorKind::internal, "furnishing the container: unexpected message");
    auto attached = attach(std::move(*tree), descriptors.front().get());
    message = TaskMessage{};
    message.kind = TaskMessageKind::attached;
    message.error = attached ? 0 : attached.error().sys_errno();
    SPC_TRY(send_struct(order.lead, message));
  }
}

}  // namespace

Result<BuiltContainer> build_container(const BuildOrder& order) {
  BuiltContainer built;
  Stopwatch watch(built.times);
  SPC_TRY(join_task_namespace(order.task_mount_namespace));
  auto host = SPC_TRY(copy_host_trees());
  auto sources = SPC_TRY(copy_sources(*order.sources));
  built.mount_namespace = SPC_TRY(leave_host_mounts());
  watch.lap(Phase::sources);

  const auto workspace = SPC_TRY(make_workspace(order));
  built.layers_shared = SPC_TRY(mount_layers(order, workspace.get()));
  watch.lap(Phase::layers);

  const auto root = SPC_TRY(mount_overlay(order, workspace.get()));
  tree_of(host, HostTree::tmp) = SPC_TRY(clone_tree(workspace.get(), "tmp", false));
  watch.lap(Phase::overlay);

  SPC_TRY(pivot_into(root.get()));
  watch.lap(Phase::pivot);

  SPC_TRY(furnish_with(order, built, std::move(host), std::move(sources)));
  if (order.read_only) {
    const auto finished = SPC_TRY(open_path(AT_FDCWD, "/"));
    SPC_TRY(set_attributes(finished, MOUNT_ATTR_RDONLY, false));
  }
  watch.lap(Phase::furnish);
  return built;
}

}  // namespace spc
