#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "agent/builder/steps.hpp"
#include "agent/node/system_call.hpp"
#include "base/socket.hpp"
#include "protocol/fuse.hpp"

namespace spc::agent {
namespace {

/// By the number in a source's flags.
constexpr const char* kHuge[] = {"", "never", "always", "within_size", "advise", "", "", ""};

/// Sources that lie on the file systems of /dev and /dev/pts keep their devices: they are in the
/// container anyway.
Result<DetachedMount> mount_source(const TaskMessage& source, int path, BuildOrder& order) {
  const std::uint32_t flags = source.source_flags;
  const auto asks = [&](std::uint32_t flag) { return (flags & flag) != 0; };
  unsigned attributes = TaskMessage::attributes_of(flags);
  if (asks(TaskMessage::source_terminals))
    return new_kernel_view("devpts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, "ptmxmode", "666");
  if (asks(TaskMessage::source_tmpfs))
    return new_tmpfs(source.size != 0 ? std::to_string(source.size) : order.tmpfs_size, order.uid,
                     order.gid, "0755", attributes, source.inodes,
                     kHuge[flags / TaskMessage::source_huge_never % std::size(kHuge)]);
  if (asks(TaskMessage::source_squashfs) && order.files_mounted < order.served.size())
    return mount_served(order.served[order.files_mounted++], order, attributes);
  struct statx status {
  };  // without a question to the server of a file system, which may never answer
  ::statx(path, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0,
          &status);  // a failure leaves no device's number
  const dev_t on = ::makedev(status.stx_dev_major, status.stx_dev_minor);
  if (on != order.dev && on != order.pts) attributes |= MOUNT_ATTR_NODEV;
  return clone_tree(path, "", attributes,
                    asks(TaskMessage::source_unbindable) ? MS_UNBINDABLE
                    : asks(TaskMessage::source_private)  ? MS_PRIVATE
                                                         : MS_SLAVE);
}

/// A hook wants something mounted that the user has opened in the namespace in which it is
/// attached, before it is the container's. Empty: there is no such tree (any more).
Result<DetachedMount> tree_for(TaskMessageKind kind, const TaskMessage& target,
                               std::vector<UniqueFd>& descriptors, BuildOrder& order,
                               std::vector<DetachedMount>& trees) {
  const bool is_new =
      descriptors.size() == 2 || (target.source_flags & TaskMessage::source_tmpfs) != 0;
  if (kind == TaskMessageKind::hooks && is_new && !descriptors.empty())
    return mount_source(target, descriptors.back().get(), order);
  return descriptors.size() == 1 && target.index < trees.size() ? std::move(trees[target.index])
                                                                : DetachedMount();
}

}  // namespace

Result<std::vector<UniqueFd>> receive_paths(int lead, TaskMessage& message, std::size_t most) {
  auto paths =
      SPC_TRY_DURING("setting up the root file system", receive_struct(lead, message, most));
  for (const UniqueFd& path : paths)
    if ((::fcntl(path.get(), F_GETFL) & O_PATH) == 0)
      return Error(ErrorKind::refused, "use an opened file of a task: not a path");
  if (message.kind == TaskMessageKind::failed) return message.failure.unread();
  return paths;
}

/// The server says that it is ready, or why not, before it is given anything to do.
Result<DetachedMount> mount_served(ServedLayer& layer, const BuildOrder& order,
                                   unsigned attributes) {
  FuseStatus status;
  if (!receive_struct(layer.status, status))
    return Error(ErrorKind::unavailable, "serve a squashfs: the FUSE server exited unexpectedly");
  if (status.error.is_set()) return status.error.unread();
  auto mount = SPC_TRY(new_fuse(layer.device.get(), order.uid, order.gid, attributes));
  layer.device.reset();  // the server's is now the only one: when it dies, whoever waits for an
                         // answer gets an error
  SPC_TRY(send_struct(layer.status, FuseOrder::begin));
  return mount;
}

/// /proc is a copy of the host's, not a new one: that keeps the site's hidepid. What shows a
/// namespace must be new where the container has its own.
Result<std::vector<DetachedMount>> mount_trees(BuildOrder& order, int lead) {
  struct stat dev {};
  if (::stat("/dev", &dev) == 0) order.dev = dev.st_dev;
  if (::stat("/dev/pts", &dev) == 0) order.pts = dev.st_dev;
  std::vector<DetachedMount> trees;
  for (; order.sources_due > 0; --order.sources_due) {
    TaskMessage source;
    const auto path = SPC_TRY(receive_paths(lead, source, 1));
    trees.push_back(SPC_TRY(mount_source(source, path.empty() ? -1 : path.front().get(), order)));
  }
  if (order.join >= 0) return trees;
  constexpr std::uint64_t kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  const auto has = [&](std::uint32_t namespaces) { return (order.namespaces & namespaces) != 0; };
  trees.push_back(SPC_TRY(has(own_pid) ? new_kernel_view("proc", kQuiet)
                                       : clone_tree(AT_FDCWD, "/proc", kQuiet)));
  trees.push_back(SPC_TRY(has(own_net) ? new_kernel_view("sysfs", kQuiet | MOUNT_ATTR_RDONLY)
                                       : clone_tree(AT_FDCWD, "/sys", kQuiet | MOUNT_ATTR_RDONLY)));
  trees.push_back(SPC_TRY(clone_tree(AT_FDCWD, "/dev", MOUNT_ATTR_NOSUID)));
  trees.push_back(SPC_TRY(new_tmpfs(order.tmpfs_size, order.uid, order.gid, "1777")));
  if (!has(own_ipc)) return trees;
  trees.push_back(SPC_TRY(new_tmpfs(order.tmpfs_size, order.uid, order.gid, "1777")));
  trees.push_back(SPC_TRY(new_kernel_view("mqueue", kQuiet)));
  return trees;
}

Result<void> set_up_root(TaskMessageKind kind, std::span<const int> more, int lead,
                         BuildOrder& order, std::vector<DetachedMount>& trees, TaskMessage& ready) {
  TaskMessage message{.kind = kind, .manifest = ready.manifest};
  const auto root = SPC_TRY(open_path(AT_FDCWD, "/"));
  std::vector<int> passed{root.get(), order.image.record.get()};
  passed.insert(passed.end(), more.begin(), more.end());
  SPC_TRY(send_struct(lead, message, passed));
  for (;;) {
    auto descriptors = SPC_TRY(receive_paths(lead, message, 2));
    if (message.kind == TaskMessageKind::set_up_done) {
      ready.text = message.text;
      ready.asks_host = message.asks_host;
      return {};
    }
    auto tree = message.kind == TaskMessageKind::target
                    ? tree_for(kind, message, descriptors, order, trees)
                    : Result(DetachedMount());
    if (tree && !*tree)
      return Error(ErrorKind::internal, "setting up the root file system: unexpected message");
    const auto attached =
        tree ? attach(*std::move(tree), descriptors.front().get()) : Result<void>(tree.error());
    message = TaskMessage{.kind = TaskMessageKind::attached,
                          .error = attached ? 0 : attached.error().sys_errno()};
    SPC_TRY(send_struct(lead, message));
  }
}

}  // namespace spc::agent
