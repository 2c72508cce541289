#include "agent/builder.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <iterator>

#include "agent/loop_device.hpp"
#include "agent/mount.hpp"
#include "agent/namespaces.hpp"
#include "agent/policy.hpp"
#include "agent/system_call.hpp"
#include "base/clock.hpp"
#include "base/socket.hpp"
#include "protocol/fuse.hpp"

namespace spc {
namespace {

using HostTrees = std::array<DetachedMount, static_cast<std::size_t>(HostTree::count)>;

DetachedMount& tree_of(HostTrees& trees, HostTree which) { return trees[static_cast<std::size_t>(which)]; }

/// Needs SYS_CHROOT and SYS_ADMIN. The agent was started in slurmstepd's namespace; job_container/tmpfs gives the tasks
/// another one, and a tree can be copied only within the namespace it was opened in.
Result<void> join_task_namespace(int mount_namespace) {
  return check(::setns(mount_namespace, CLONE_NEWNS), "join the task's mount namespace");
}

/// Net, ipc and uts. They belong to the container's user namespace if it has one: its root can administer them.
Result<std::vector<UniqueFd>> enter_own_namespaces(std::uint32_t bits, int proc, int user) {
  int flags = 0;
  std::vector<const char*> names;
  for (const auto& [bit, flag, name] : kNamespaceKinds) {
    if ((bits & bit & (own_net | own_ipc | own_uts)) == 0) continue;
    flags |= flag;
    names.push_back(name);
  }
  std::vector<UniqueFd> entered;
  if (flags != 0) entered = SPC_TRY(new_namespaces(proc, user, flags, names));
  for (const UniqueFd& space : entered) SPC_TRY(check(::setns(space.get(), 0), "enter the container's namespaces"));
  return entered;
}

/// /proc is a copy of the host's, not a new one: that keeps the site's hidepid. What shows a namespace must be new where the
/// container has its own.
Result<HostTrees> copy_host_trees(std::uint32_t namespaces) {
  constexpr std::uint64_t kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  HostTrees trees;
  tree_of(trees, HostTree::proc) =
      SPC_TRY((namespaces & own_pid) != 0 ? new_kernel_view("proc") : clone_tree(AT_FDCWD, "/proc", true, kQuiet));
  tree_of(trees, HostTree::sys) =
      SPC_TRY((namespaces & own_net) != 0 ? new_kernel_view("sysfs", MOUNT_ATTR_RDONLY)
                                          : clone_tree(AT_FDCWD, "/sys", true, kQuiet | MOUNT_ATTR_RDONLY));
  if ((namespaces & own_ipc) != 0) tree_of(trees, HostTree::mqueue) = SPC_TRY(new_kernel_view("mqueue"));
  tree_of(trees, HostTree::dev) = SPC_TRY(clone_tree(AT_FDCWD, "/dev", true, MOUNT_ATTR_NOSUID));
  return trees;
}

/// The server says that it is ready, or why not, before it is given anything to do.
Result<DetachedMount> mount_served(ServedLayer& layer, const BuildOrder& order, unsigned attributes = 0) {
  FuseStatus status;
  if (!receive_struct(layer.status.get(), status)) {
    return Error(ErrorKind::unavailable, "serve a squashfs: the FUSE server exited unexpectedly").hint("it may need more memory: see --mem");
  }
  if (status.error.is_set()) return status.error.error();
  auto mount = SPC_TRY(new_fuse(layer.device.get(), order.uid, order.gid, attributes));
  layer.device.reset();  // the server's is now the only one: when it dies, whoever waits for an answer gets an error
  SPC_TRY(send_struct(layer.status.get(), status));
  return mount;
}

/// Sources that lie on the file system of /dev keep their devices: they are in the container anyway.
Result<DetachedMount> mount_source(MountSource& source, const BuildOrder& order, const std::string& size) {
  const auto asks = [&](std::uint32_t flag) { return (source.flags & flag) != 0; };
  unsigned attributes = MOUNT_ATTR_NOSUID;
  if (asks(TaskMessage::source_read_only)) attributes |= MOUNT_ATTR_RDONLY;
  if (asks(TaskMessage::source_no_exec)) attributes |= MOUNT_ATTR_NOEXEC;
  if (asks(TaskMessage::source_tmpfs)) {
    return new_tmpfs(source.size != 0 ? std::to_string(source.size) : size, order.uid, order.gid, "0755", attributes);
  }
  if (asks(TaskMessage::source_squashfs)) return mount_served(source.served, order, attributes);
  struct stat status {};
  if (::fstat(source.path.get(), &status) != 0 || status.st_dev != order.dev) attributes |= MOUNT_ATTR_NODEV;
  return clone_tree(source.path.get(), "", !asks(TaskMessage::source_not_recursive), attributes,
                    asks(TaskMessage::source_private) ? MS_PRIVATE : MS_SLAVE);
}

Result<std::vector<DetachedMount>> mount_sources(BuildOrder& order, const std::string& size) {
  struct stat dev {};
  SPC_TRY(check(::stat("/dev", &dev), "stat /dev"));
  order.dev = dev.st_dev;
  std::vector<DetachedMount> trees;
  for (MountSource& source : order.sources) trees.push_back(SPC_TRY(mount_source(source, order, size)));
  return trees;
}

/// What a hook wants mounted: opened by the user in the namespace in which it is attached, before it is the container's.
Result<DetachedMount> mount_for_hook(const TaskMessage& message, UniqueFd opened, const BuildOrder& order,
                                     const std::string& size) {
  MountSource source{std::move(opened), message.source_flags & ~TaskMessage::source_squashfs, message.size, {}};
  return mount_source(source, order, size);
}

/// An image that is a directory is the only lower layer of its container. Overlayfs reads it as root, so root must be able to.
Result<std::vector<DetachedMount>> copy_directory(int directory) {
  std::vector<DetachedMount> lower;
  if (directory < 0) return lower;
  auto tree = SPC_TRY(clone_tree(directory, "", false, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  struct statvfs status {};
  SPC_TRY(check(::fstatvfs(tree.get(), &status), "stat the image directory"));
  // Not on /sys and the like either: what they show depends on who reads, and overlayfs reads as root.
  if ((status.f_flag & ST_NOEXEC) != 0) {
    return Error(ErrorKind::refused, "use the directory as an image: its file system does not allow executables");
  }
  if (auto read = own(::openat(tree.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "read the image directory"); !read) {
    return std::move(read).error().hint("root must be able to read it, which NFS and FUSE may not allow: copy it to a local disk");
  }
  lower.push_back(std::move(tree));
  return lower;
}

/// From here on nothing that this process mounts is visible to the host.
Result<UniqueFd> leave_host_mounts() {
  SPC_TRY(check(::unshare(CLONE_NEWNS), "create a mount namespace"));
  SPC_TRY(check(::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr), "make mounts private"));
  return own(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), "open the mount namespace");
}

Result<UniqueFd> open_path(int parent, const std::string& name) {
  return own(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC), "open directory " + name);
}

Result<UniqueFd> make_directory(int parent, const std::string& name, mode_t mode) {
  SPC_TRY(check(::mkdirat(parent, name.c_str(), mode), "make directory " + name));
  return open_path(parent, name);
}

/// A tmpfs in our namespace that holds the writable layer and the places where the layers are mounted. Overlayfs before
/// 6.13 takes only attached layers, so they are attached here; the pivot takes them out of sight. Hooks see it before, and
/// have `hooks` for their files.
Result<UniqueFd> make_workspace(const BuildOrder& order, DetachedMount kept, const std::string& size) {
  auto tmpfs = SPC_TRY(new_tmpfs(size, 0, 0, order.hooks ? "0711" : "0700"));
  auto place = SPC_TRY(open_path(AT_FDCWD, SPC_RUN_DIR));
  SPC_TRY(attach(std::move(tmpfs), place.get()));
  auto workspace = SPC_TRY(open_path(AT_FDCWD, SPC_RUN_DIR));
  SPC_TRY(make_directory(workspace.get(), "root", 0755));
  const auto writable = SPC_TRY(make_directory(workspace.get(), "writable", 0700));
  if (order.hooks) {
    SPC_TRY(make_directory(workspace.get(), "hooks", 0700));
    SPC_TRY(check(::fchownat(workspace.get(), "hooks", order.uid, order.gid, AT_SYMLINK_NOFOLLOW), "change the owner of directory hooks"));
  }
  if (kept) {
    SPC_TRY(attach(std::move(kept), writable.get()));
    return workspace;
  }
  for (const char* name : {"up", "work"}) SPC_TRY(make_directory(writable.get(), name, 0755));
  // The owner of the container's /.
  SPC_TRY(check(::fchownat(writable.get(), "up", order.uid, order.gid, AT_SYMLINK_NOFOLLOW), "change the owner of directory up"));
  return workspace;
}

/// The kernel reads the layer; a step that does so already shares its super block with us.
Result<DetachedMount> mount_layer(const LayerFile& layer, const AgentTools& tools, std::uint32_t& shared) {
  const auto loop = SPC_TRY(loop_device_of(layer.digest, layer.file.get(), tools.loop_table.get()));
  shared += loop.shared ? 1 : 0;
  return new_squashfs("/dev/loop" + std::to_string(loop.number), tools.id_map.get());
}

/// Attaches lower layer i at directory i of the workspace.
Result<void> attach_lower(std::vector<DetachedMount> lower, int workspace) {
  for (std::size_t i = 0; i < lower.size(); ++i) {
    const auto place = SPC_TRY(make_directory(workspace, std::to_string(i), 0700));
    SPC_TRY(attach(std::move(lower[i]), place.get()));
  }
  return {};
}

/// One overlay over all layers, by names relative to the workspace: no user's string and no length limit in sight.
/// redirect_dir: without it rename(2) of a directory of the image fails with EXDEV, and dpkg, pip and mv with it.
/// index, of what is kept: makes the kernel refuse an upper directory that another overlay has, whatever has become of its
/// agents; that one may just be ending.
Result<UniqueFd> mount_overlay(std::size_t layers, int workspace, bool kept) {
  std::string options = "lowerdir=";
  // Overlayfs wants a lower layer even for an image that has none, and two when there is no upper one.
  if (layers == 0) {
    SPC_TRY(make_directory(workspace, "empty", 0755));
    options += "empty:";
  }
  while (layers-- > 0) options += std::to_string(layers) + ":";
  options.back() = ',';
  options += "upperdir=writable/up,workdir=writable/work,redirect_dir=on,metacopy=off,index=";
  options += kept ? "on" : "off";
  SPC_TRY(check(::fchdir(workspace), "enter the workspace"));
  for (int attempt = 0; ::mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options.c_str()) != 0; ++attempt) {
    const int failed = errno;
    const timespec moment{0, 20'000'000};
    if (failed == EBUSY && attempt < 100) {
      ::nanosleep(&moment, nullptr);
      continue;
    }
    auto error = Error::from_errno(failed, "mount overlay");
    if (failed == EBUSY) return std::move(error).hint("processes of a step that lost its agent still use the container");
    return kept ? std::move(error).hint("the store must be on a local file system, such as ext4 or xfs") : std::move(error);
  }
  return open_path(workspace, "root");
}

/// The calling process and its namespace then see the container's root only.
Result<void> pivot_into(int root) {
  SPC_TRY(check(::fchdir(root), "enter the container's root"));
  SPC_TRY(check(::syscall(SYS_pivot_root, ".", "."), "pivot into the container"));
  return check(::umount2(".", MNT_DETACH), "leave the host's root");
}

/// The leading task, inside as the user, opens each target in turn; only its descriptors are used here. `kind`: set_up, or
/// hooks, which may mount more; `size`: of what they mount.
Result<void> set_up_root_with(TaskMessageKind kind, int lead, std::span<const int> container, HostTrees& host,
                              std::vector<DetachedMount>& sources, UniqueFd& notes, TaskMessage& ready, const BuildOrder& order,
                              const std::string& size) {
  TaskMessage message;
  message.kind = kind;
  message.manifest = ready.manifest;
  SPC_TRY(send_struct(lead, message, container));
  for (;;) {
    auto descriptors = SPC_TRY_DURING("setting up the root file system", receive_struct(lead, message));
    if (message.kind == TaskMessageKind::set_up_done) {
      ready.text = message.text;
      if (descriptors.size() == 1) notes = std::move(descriptors.front());
      return {};
    }
    if (message.kind == TaskMessageKind::failed) return message.failure.error();
    Result<DetachedMount> of_hook = DetachedMount();
    DetachedMount* tree = nullptr;
    const bool is_new = descriptors.size() == 2 || (message.source_flags & TaskMessage::source_tmpfs) != 0;
    if (message.kind == TaskMessageKind::target && kind == TaskMessageKind::hooks && is_new && !descriptors.empty()) {
      of_hook = mount_for_hook(message, descriptors.size() == 2 ? std::move(descriptors[1]) : UniqueFd(), order, size);
      tree = of_hook ? &*of_hook : nullptr;
    } else if (message.kind == TaskMessageKind::target && descriptors.size() == 1) {
      if (message.index < sources.size()) {
        tree = &sources[message.index];
      } else if (message.index - sources.size() < host.size()) {
        tree = &host[message.index - sources.size()];
      }
    }
    if (of_hook && (tree == nullptr || !*tree)) {
      return Error(ErrorKind::internal, "setting up the root file system: unexpected message");
    }
    auto attached = of_hook ? attach(std::move(*tree), descriptors.front().get()) : Result<void>(of_hook.error());
    message = TaskMessage{};
    message.kind = TaskMessageKind::attached;
    message.error = attached ? 0 : attached.error().sys_errno();
    SPC_TRY(send_struct(lead, message));
  }
}

/// For the user to read when the tasks have ended: the root without what is mounted in it. It is attached, in a namespace
/// that nobody else is in: from a detached mount a user could make one without nosuid and nodev.
Result<void> give_bare_root(int lead) {
  auto bare = SPC_TRY(clone_tree(AT_FDCWD, "/", false, 0));
  SPC_TRY(check(::unshare(CLONE_NEWNS), "create a mount namespace"));
  const auto place = SPC_TRY(open_path(AT_FDCWD, "/proc"));
  SPC_TRY(attach(std::move(bare), place.get()));
  const auto root = SPC_TRY(open_path(AT_FDCWD, "/proc"));
  TaskMessage message;
  message.kind = TaskMessageKind::to_save;
  const int passed[] = {root.get()};
  return send_struct(lead, message, passed);
}

/// The sources are copied where they were opened, and attached where the container is.
Result<std::vector<UniqueFd>> add_to_running(BuildOrder& order, const Task& lead, const std::string& size, TaskMessage& ready) {
  SPC_TRY(join_task_namespace(lead.mount_namespace.get()));
  auto sources = SPC_TRY(mount_sources(order, size));
  SPC_TRY(check(::setns(order.join, CLONE_NEWNS), "join the container"));
  UniqueFd notes;  // the other tasks have those that the container has
  const int container[] = {order.join, order.image.record.get()};
  HostTrees none;
  SPC_TRY(set_up_root_with(TaskMessageKind::set_up, lead.socket.get(), container, none, sources, notes, ready, order, size));
  if (order.save) SPC_TRY(give_bare_root(lead.socket.get()));
  std::vector<UniqueFd> namespaces;
  namespaces.push_back(SPC_TRY(own(::fcntl(order.join, F_DUPFD_CLOEXEC, 0), "keep the container")));
  return namespaces;
}

}  // namespace

Result<std::vector<UniqueFd>> build_container(BuildOrder& order, const AgentTools& tools, const Task& lead, TaskMessage& ready) {
  std::uint64_t began = now_us();
  const auto lap = [&](Phase phase) {
    const std::uint64_t moment = now_us();
    ready.times[static_cast<std::size_t>(phase)] += static_cast<std::uint32_t>(moment - began);
    began = moment;
  };
  const std::string size = order.upper_size != 0 ? std::to_string(order.upper_size) : upper_size(tools.policy);
  if (order.join >= 0) return add_to_running(order, lead, size, ready);
  ImageFiles& image = order.image;
  DetachedMount kept;
  if (order.kept) kept = SPC_TRY(clone_tree(order.kept.get(), "", false, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  SPC_TRY(join_task_namespace(lead.mount_namespace.get()));
  const auto proc = SPC_TRY(open_path(AT_FDCWD, "/proc"));
  const int user = (order.namespaces & own_user) != 0 ? tools.id_map.get() : -1;
  auto entered = SPC_TRY(enter_own_namespaces(order.namespaces, proc.get(), user));
  auto host = SPC_TRY(copy_host_trees(order.namespaces));
  auto sources = SPC_TRY(mount_sources(order, size));
  auto lower = SPC_TRY(copy_directory(image.directory.get()));
  auto mount_namespace = SPC_TRY(leave_host_mounts());
  lap(Phase::sources);

  const auto workspace = SPC_TRY(make_workspace(order, std::move(kept), size));
  for (ServedLayer& layer : image.served) lower.push_back(SPC_TRY(mount_served(layer, order)));
  for (const LayerFile& layer : image.layers) lower.push_back(SPC_TRY(mount_layer(layer, tools, ready.layers_shared)));
  ready.layers = static_cast<std::uint32_t>(lower.size());
  SPC_TRY(attach_lower(std::move(lower), workspace.get()));
  lap(Phase::layers);

  const auto root = SPC_TRY(mount_overlay(ready.layers, workspace.get(), order.kept.operator bool()));
  for (const HostTree which : {HostTree::tmp, HostTree::shm}) {
    if (which == HostTree::shm && (order.namespaces & own_ipc) == 0) continue;
    tree_of(host, which) = SPC_TRY(new_tmpfs(size, order.uid, order.gid, "1777"));
  }
  lap(Phase::overlay);

  UniqueFd notes;
  const int container[] = {mount_namespace.get(), image.record.get(), root.get()};
  const auto set_up_root = [&](TaskMessageKind kind, std::size_t passed) {
    return set_up_root_with(kind, lead.socket.get(), std::span(container, passed), host, sources, notes, ready, order, size);
  };
  if (order.hooks) {
    SPC_TRY(set_up_root(TaskMessageKind::hooks, 3));
    lap(Phase::root_setup);
  }
  SPC_TRY(pivot_into(root.get()));
  lap(Phase::pivot);

  SPC_TRY(set_up_root(TaskMessageKind::set_up, 2));
  if (order.read_only) {
    const auto finished = SPC_TRY(open_path(AT_FDCWD, "/"));
    SPC_TRY(make_read_only(finished.get()));
  }
  ready.namespaces = order.namespaces;
  std::vector<UniqueFd> namespaces;
  if (user >= 0) {
    // Last: the mounts that are there when a user namespace gets its copy are out of reach of whoever is root in it.
    namespaces = SPC_TRY(new_namespaces(proc.get(), user, CLONE_NEWNS, {"mnt", "user"}));
  } else {
    namespaces.push_back(std::move(mount_namespace));
  }
  std::ranges::move(entered, std::back_inserter(namespaces));
  if ((order.namespaces & own_pid) != 0) {
    namespaces.push_back(SPC_TRY(own(::openat(proc.get(), "self/ns/pid", O_RDONLY | O_CLOEXEC), "open the pid namespace")));
  }
  ready.has_notes = notes.operator bool();
  if (notes) namespaces.insert(namespaces.begin() + 1, std::move(notes));
  if (order.save) SPC_TRY(give_bare_root(lead.socket.get()));
  lap(Phase::root_setup);
  return namespaces;
}

}  // namespace spc
