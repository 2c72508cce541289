// The process that builds a container's mount namespace: namespaces, overlay, and mounts in the
// root file system.

#include "agent/builder.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/capability.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "agent/named_container.hpp"
#include "agent/privilege.hpp"
#include "base/clock.hpp"
#include "base/socket.hpp"
#include "protocol/fuse.hpp"

namespace spc::agent {

namespace {

// --- namespaces ---

/// Leaves the host's mount namespace: no later mount of this process is visible to the host.
/// `proc`: the node's /proc.
Result<UniqueFd> leave_host_mounts(int proc) {
  SPC_TRY(check(::unshare(CLONE_NEWNS), "create a mount namespace"));
  SPC_TRY(check(::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr), "make mounts private"));
  return own(::openat(proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC), "open the mount namespace");
}

/// Enters a task's mount namespace, because its sources can be copied only there:
/// job_container/tmpfs gives the task another one than the agent's. A namespace that the user has
/// made is refused: it could have anything at the paths that root opens.
Result<void> enter_task(int mounts) {
  char byte = 0;
  // Peek only: a second builder may follow.
  const auto passed = SPC_TRY(receive_struct(mounts, byte, 1, MSG_PEEK));
  const int mount_namespace = passed.empty() ? -1 : passed.front().get();
  const UniqueFd owner(::ioctl(mount_namespace, NS_GET_USERNS));
  // EPERM: `owner` is our own user namespace, the only one whose parent is out of reach.
  if (!owner || ::ioctl(owner.get(), NS_GET_PARENT) != -1 || errno != EPERM)
    return Error(ErrorKind::refused,
                 "join the task's mount namespace: it is not one of the node's");
  return check(::setns(mount_namespace, CLONE_NEWNS), "join the task's mount namespace");
}

/// Creates new namespaces of these kinds (`flags`: CLONE_NEW*; `names`: those below /proc/PID/ns).
/// A child creates them that enters the user namespace `owner` first (-1: none), so that it owns
/// them. A new mount namespace is a copy of the caller's, in which existing mounts can neither be
/// unmounted nor lose a flag. `proc` is the node's /proc.
Result<std::vector<UniqueFd>> new_namespaces(int proc, int owner, int flags,
                                             const std::vector<const char*>& names) {
  std::vector<UniqueFd> made;
  int failed = 0;
  const pid_t child = SPC_TRY(run_aside(0, [&] {  // a process cannot leave a user namespace
    const bool joined = owner < 0 || ::setns(owner, CLONE_NEWUSER) == 0;
    // Files that come with a namespace (of message queues) belong to its creator. They must belong
    // to its root, or no process could write to them.
    ::setfsgid(0);
    ::setfsuid(0);
    bool done = joined && ::unshare(flags) == 0;
    for (const char* name : names)
      done = done && made.emplace_back(::openat(proc, (std::string("self/ns/") + name).c_str(),
                                                O_RDONLY | O_CLOEXEC));
    if (!done) failed = errno;
  }));
  ::waitpid(child, nullptr, 0);
  if (failed != 0) return Error::from_errno(failed, "set up the container's namespaces");
  return made;
}

/// Enters new net, ipc and uts namespaces, as selected by `bits`. If the container has a user
/// namespace, `user` owns them: its root can administer them.
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
  for (const UniqueFd& space : entered)
    SPC_TRY(check(::setns(space.get(), 0), "enter the container's namespaces"));
  return entered;
}

// --- set up: mounts in the root file system, with targets from the leader ---

/// Receives the leader's next message, with at most `most` descriptors. Open files other than
/// O_PATH are refused; the end of this process closes them.
Result<std::vector<UniqueFd>> receive_paths(int lead, TaskMessage& message, std::size_t most) {
  auto paths =
      SPC_TRY_DURING("setting up the root file system", receive_struct(lead, message, most));
  for (const UniqueFd& path : paths)
    if ((::fcntl(path.get(), F_GETFL) & O_PATH) == 0)
      return Error(ErrorKind::refused, "use an opened file of a task: not a path");
  if (message.kind == TaskMessageKind::failed) return message.failure.unread();
  return paths;
}

/// Mounts the file system served by a `fuse` of this step. The server reports that it is ready, or
/// its error, before it receives any request.
Result<DetachedMount> mount_served(ServedLayer& layer, const BuildOrder& order,
                                   std::uint32_t source_flags = 0) {
  FuseStatus status;
  if (!receive_struct(layer.status, status))
    return Error(ErrorKind::unavailable, "serve a squashfs: the FUSE server exited unexpectedly")
        .hint("increase --mem");
  if (status.error.is_set()) return status.error.unread();
  auto mount = SPC_TRY(
      new_fuse(layer.device.get(), order.uid, order.gid, TaskMessage::attributes_of(source_flags)));
  layer.device.reset();  // the server has the only descriptor now: when it dies, waiting processes
                         // get an error
  SPC_TRY(send_struct(layer.status, FuseOrder::begin));
  return mount;
}

/// Returns the tree for a target. A hook may request a mount of a source that the user has opened
/// in the namespace in which it is attached, before the container's own. Returns an empty mount if
/// the tree does not exist (any more).
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

/// Returns the pending sources from the leader, copied in the namespace where they were opened. For
/// a new container its HostTrees follow in order.
Result<std::vector<DetachedMount>> mount_trees(BuildOrder& order, int lead) {
  order.find_devices();
  std::vector<DetachedMount> trees;
  for (; order.sources_due > 0; --order.sources_due) {
    TaskMessage source;
    const auto path = SPC_TRY(receive_paths(lead, source, 1));
    const bool is_served = (source.source_flags & TaskMessage::source_squashfs) != 0 &&
                           order.files_mounted < order.served.size();
    trees.push_back(SPC_TRY(
        is_served ? mount_served(order.served[order.files_mounted++], order, source.source_flags)
                  : mount_source(source, path.empty() ? -1 : path.front().get(), order)));
  }
  if (order.join >= 0) return trees;
  SPC_TRY(add_host_trees(trees, order.namespaces));
  trees.push_back(SPC_TRY(new_tmpfs(order, "1777")));
  if ((order.namespaces & own_ipc) == 0) return trees;
  trees.push_back(SPC_TRY(new_tmpfs(order, "1777")));
  trees.push_back(
      SPC_TRY(new_mount("mqueue", {}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)));
  return trees;
}

/// Attaches `trees` at targets that the leader, in the container as the user, opens in turn; only
/// its descriptors are used here. `kind`: set_up, or hooks, which may request more mounts and
/// receive the descriptors in `more`.
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

// --- root: layers, the writable layer and the overlay ---

/// Makes a directory owned by root or by the container's user.
Result<UniqueFd> make_directory(int parent, const std::string& name, mode_t mode, uid_t uid = 0,
                                gid_t gid = 0) {
  SPC_TRY(check(::mkdirat(parent, name.c_str(), mode), "make directory " + name));
  SPC_TRY(check(::fchownat(parent, name.c_str(), uid, gid, AT_SYMLINK_NOFOLLOW),
                "change the owner of directory " + name));
  return open_path(parent, name);
}

/// Overlayfs takes the top of a layer without the mounts in it, and so would show the files that
/// those mounts cover. The kernel marks a mount as expired if it is unused, children included. The
/// mark has no other effect here.
Result<void> refuse_mounts_in(int workspace, const std::string& layer) {
  SPC_TRY(check(::fchdir(workspace), "enter the workspace"));
  if (::umount2(layer.c_str(), MNT_EXPIRE) != 0 && errno == EAGAIN) return {};
  return Error(ErrorKind::refused,
               "use the directory as an image: a file system is mounted below it")
      .hint("unmount it, or copy the directory");
}

/// Copies an image directory that the leader passes: the only lower layer of its container.
Result<DetachedMount> copy_directory(int lead) {
  TaskMessage message;
  const auto directory = SPC_TRY(receive_paths(lead, message, 1));
  auto tree = SPC_TRY(clone_tree(directory.empty() ? -1 : directory.front().get(), "",
                                 MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  struct statfs status {};
  SPC_TRY(check(::fstatfs(tree.get(), &status), "stat the image directory"));
  // Refuse /proc and similar file systems as well: their content depends on the reader, and
  // overlayfs reads for the tasks. Refuse overlays, because the kernel stacks only two.
  if ((status.f_flags & ST_NOEXEC) != 0 || status.f_type == OVERLAYFS_SUPER_MAGIC)
    return Error(ErrorKind::refused,
                 "use the directory as an image: its file system does not allow executables, or is "
                 "overlayfs");
  return tree;
}

/// Creates a tmpfs in the builder's namespace with the writable layer and the mount points of the
/// layers. Overlayfs before 6.13 takes only attached layers, so they are attached here. The pivot
/// hides them. Hooks run before the pivot, and have `hooks` for their files.
Result<UniqueFd> make_workspace(const BuildOrder& order, DetachedMount kept) {
  auto tmpfs = SPC_TRY(new_tmpfs(
      {.tmpfs_size = order.tmpfs_size, .keeper = order.keeper},
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

Result<std::vector<DetachedMount>> mount_layers(const std::vector<LayerFile>& layers,
                                                const LayerOwner& owner, std::uint32_t& shared) {
  std::vector<DetachedMount> mounts;
  for (const LayerFile& layer : layers) mounts.push_back(SPC_TRY(new_layer(layer, owner, shared)));
  return mounts;
}

/// Attaches these layers, and the served ones above them, in the workspace, for mount_overlay;
/// counts all.
Result<void> attach_layers(BuildOrder& order, std::vector<DetachedMount> lower, int workspace,
                           TaskMessage& ready) {
  for (ServedLayer& layer : std::span(order.served).first(ready.layers_served))
    lower.push_back(SPC_TRY(mount_served(layer, order)));
  for (DetachedMount& layer : lower) {
    const std::string name = std::to_string(ready.layers++);
    const auto place = SPC_TRY(make_directory(workspace, name, 0700));
    SPC_TRY(attach(std::move(layer), place.get()));
    if (order.is(TaskMessage::start_directory)) SPC_TRY(refuse_mounts_in(workspace, name));
  }
  return {};
}

/// Acts as the user: overlayfs works with its mounter's credentials. A copied file therefore gets
/// only owners and modes that the user could set, whatever a server reports for the file. The
/// supplementary groups are the job's: slurmstepd has started the agent with them.
void act_as_user(const BuildOrder& order) {
  const pid_t agent = ::getppid();
  ::setfsgid(order.gid);
  ::setfsuid(order.uid);  // also drops the capabilities over files
  stay_with(agent);       // the kernel has forgotten the death signal
}

/// Covers the directory with its own overlay. The mounter of the writable layer's overlay has
/// CAP_DAC_OVERRIDE. It checks each access with this overlay, which has only the user's rights. `0`
/// is the directory; overlayfs wants two layers where there is no upper one.
Result<void> cover_directory() {
  SPC_TRY(
      own(::open("0", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "read the image directory",
          "its FUSE file system must allow other users, root included: copy it to a local disk"));
  return check(::mount("overlay", "0", "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV,
                       "lowerdir=0:empty,redirect_dir=nofollow"),
               "mount the image directory");
}

/// Mounts one overlay over the layers that are attached in the workspace, and returns its root. The
/// options name them relative to the workspace: these names contain no user string and avoid the
/// length limit. redirect_dir: without it rename(2) of a directory of the image fails with EXDEV,
/// which breaks dpkg, pip and mv. index, for kept containers: the kernel then refuses an upper
/// directory that another overlay uses, even if its agents are gone. That overlay may just be
/// ending.
Result<UniqueFd> mount_overlay(const BuildOrder& order, std::size_t layers, int workspace) {
  std::string options = order.kept ? "index=on,lowerdir=" : "index=off,lowerdir=";
  // Overlayfs requires a lower layer even for an image without layers.
  if (layers == 0) options += "empty:";
  while (layers-- > 0) options += std::to_string(layers) + ":";
  options.back() = ',';
  options += "upperdir=writable/up,workdir=writable/work,redirect_dir=on,metacopy=off";
  SPC_TRY(check(::fchdir(workspace), "enter the workspace"));
  act_as_user(order);  // except for directories of overlayfs itself, which the kernel gives mode 0
  if (order.is(TaskMessage::start_directory)) SPC_TRY(cover_directory());
  cap_t capabilities = ::cap_get_proc();  // never freed: the process ends soon
  ::cap_set_flag(capabilities, CAP_EFFECTIVE, 1, std::array{CAP_DAC_OVERRIDE}.data(), CAP_SET);
  SPC_TRY(check(::cap_set_proc(capabilities), "raise a capability"));
  int attempts = 0;
  while (::mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    const int failed = errno;
    if (failed == EBUSY && attempts++ < 100 && ::usleep(20'000) == 0) continue;
    const bool stored = order.kept && failed != EBUSY;
    return Error::from_errno(failed, stored ? "mount overlay in the store" : "mount overlay")
        .hint(stored            ? "the store must be on a local file system, such as ext4 or xfs"
              : failed == EBUSY ? "processes of a step that lost its agent still use the container"
                                : "");
  }
  return open_path(workspace, "root");
}

// --- builder ---

/// Sends the leader the root without the mounts in it, for the user to read when the tasks have
/// ended. The root is attached in a private mount namespace: from a detached mount a user could
/// make one without nosuid and nodev. No task enters before the leader answers, so the state that
/// it compares the root with later is the initial one.
Result<void> give_bare_root(int lead) {
  const auto bare = SPC_TRY(clone_tree(AT_FDCWD, "/", 0, MS_SLAVE, AT_EMPTY_PATH));
  SPC_TRY(check(::unshare(CLONE_NEWNS), "create a mount namespace"));
  SPC_TRY(check(::move_mount(bare.get(), "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH),
                "attach a mount"));
  TaskMessage message{.kind = TaskMessageKind::to_save};
  const int passed[] = {bare.get()};
  SPC_TRY(send_struct(lead, message, passed));
  SPC_TRY_DURING("saving the container", receive_struct(lead, message));
  return message.kind == TaskMessageKind::failed ? Result<void>(message.failure.unread())
                                                 : Result<void>();
}

/// Copies the sources where they were opened, and attaches them in the running container.
Result<std::vector<UniqueFd>> add_to_running(BuildOrder& order, const Task& lead,
                                             TaskMessage& ready) {
  SPC_TRY(enter_task(lead.mounts.get()));
  auto sources = SPC_TRY(mount_trees(order, lead.socket.get()));
  SPC_TRY(check(::setns(order.join, CLONE_NEWNS), "join the container"));
  SPC_TRY(set_up_root(TaskMessageKind::set_up, {}, lead.socket.get(), order, sources, ready));
  if (order.is(TaskMessage::start_save)) SPC_TRY(give_bare_root(lead.socket.get()));
  return std::vector<UniqueFd>();  // the agent has them
}

constexpr char kSteps[] = SPC_RUN_DIR "/steps";
constexpr char kHeld[] = SPC_RUN_DIR "/steps/held";

/// Keeps a namespace that sees only the directory of steps.
Result<void> keep_new_namespace(int host) {
  const auto proc = SPC_TRY(open_path(AT_FDCWD, "/proc"));
  const auto made = SPC_TRY(leave_host_mounts(proc.get()));
  const auto root = SPC_TRY(open_path(AT_FDCWD, kSteps));
  SPC_TRY(pivot_into(root.get()));
  SPC_TRY(check(::setns(host, CLONE_NEWNS), "return to the host"));
  return check(::mount(itself(made.get()).c_str(), kHeld, nullptr, MS_BIND, nullptr),
               "keep a mount namespace");
}

}  // namespace

Result<std::vector<UniqueFd>> build_container(BuildOrder& order, const AgentTools& tools,
                                              const Task& lead, TaskMessage& ready) {
  std::uint64_t began = now_us();
  const auto lap = [&](Phase phase) {
    const std::uint64_t moment = now_us();
    ready.times[static_cast<std::size_t>(phase)] += static_cast<std::uint32_t>(moment - began);
    began = moment;
  };
  order.tmpfs_size = order.upper_size != 0 ? std::to_string(order.upper_size) : "50%";
  if (order.join >= 0) return add_to_running(order, lead, ready);
  const int user = (order.namespaces & own_user) != 0 ? tools.id_map.get() : -1;
  DetachedMount kept;
  if (order.kept)
    kept = SPC_TRY(clone_tree(order.kept.get(), "", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  // Paths opened here are the node's, whatever the task has mounted. An error waits until the
  // leader's sources are received.
  auto layers = mount_layers(order.image.layers, tools.layer_owner(order.uid, order.gid),
                             ready.layers_shared);
  const auto proc = SPC_TRY(open_path(AT_FDCWD, "/proc"));
  lap(Phase::layers);
  SPC_TRY(enter_task(lead.mounts.get()));
  auto entered = SPC_TRY(enter_own_namespaces(order.namespaces, proc.get(), user));
  auto trees = SPC_TRY(mount_trees(order, lead.socket.get()));
  auto lower = SPC_TRY(std::move(layers));
  if (order.is(TaskMessage::start_directory))
    lower.push_back(SPC_TRY(copy_directory(lead.socket.get())));
  auto mount_namespace = SPC_TRY(leave_host_mounts(proc.get()));
  lap(Phase::sources);

  const auto workspace = SPC_TRY(make_workspace(order, std::move(kept)));
  SPC_TRY(attach_layers(order, std::move(lower), workspace.get(), ready));
  lap(Phase::layers);
  const auto root = SPC_TRY(mount_overlay(order, ready.layers, workspace.get()));
  lap(Phase::overlay);

  const auto set_up = [&](TaskMessageKind kind, std::span<const int> passed = {}) {
    return set_up_root(kind, passed, lead.socket.get(), order, trees, ready);
  };
  if (order.is(TaskMessage::start_hooks)) {
    const int passed[] = {root.get(), mount_namespace.get()};
    SPC_TRY(set_up(TaskMessageKind::hooks, passed));
    lap(Phase::root_setup);
  }
  SPC_TRY(pivot_into(root.get()));
  lap(Phase::pivot);
  SPC_TRY(set_up(TaskMessageKind::set_up));
  if (order.is(TaskMessage::start_read_only)) SPC_TRY(make_root_read_only());

  ready.namespaces = order.namespaces;
  ready.upper_size = order.upper_size;
  ready.start_flags = order.flags & TaskMessage::start_read_only;
  std::vector<UniqueFd> namespaces;
  if (user < 0) namespaces.push_back(std::move(mount_namespace));
  // Create the user namespace last: its root cannot change mounts that exist when the namespace
  // gets its copy.
  if (user >= 0)
    namespaces = SPC_TRY(new_namespaces(proc.get(), user, CLONE_NEWNS, {"mnt", "user"}));
  for (UniqueFd& space : entered) namespaces.push_back(std::move(space));
  if ((order.namespaces & own_pid) != 0)
    namespaces.push_back(SPC_TRY(
        own(::openat(proc.get(), "self/ns/pid", O_RDONLY | O_CLOEXEC), "open the pid namespace")));
  if (order.is(TaskMessage::start_save)) SPC_TRY(give_bare_root(lead.socket.get()));
  lap(Phase::root_setup);
  return namespaces;
}

// --- held layers ---

/// A file can keep a mount namespace only where mounts do not propagate, and no copy of the host's
/// mounts has that file. The root of the namespace is the directory of steps: mounts there are
/// visible in this namespace alone, and end when the host removes the directory below.
Result<void> set_up_held_layers() {
  // Loads its module, so that import finds it.
  const UniqueFd erofs(::fsopen("erofs", FSOPEN_CLOEXEC));
  if (::mount(nullptr, kHeld, nullptr, MS_PRIVATE, nullptr) == 0)
    return remove_traces("", AT_REMOVEDIR);  // slurmd is not the first
  const auto host =
      SPC_TRY(own(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), "open the mount namespace"));
  const auto file = SPC_TRY(own(::open(kHeld, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0),
                                "create " + quoted(kHeld)));
  SPC_TRY(check(::mount(kSteps, kSteps, nullptr, MS_BIND, nullptr), "mount " + quoted(kSteps)));
  SPC_TRY(
      check(::mount(nullptr, kSteps, nullptr, MS_UNBINDABLE, nullptr), "make a mount unbindable"));
  // A namespace is kept only where its number is higher than the host's. Since Linux 6.18 each
  // processor counts separately: a namespace made on the host namespace's processor has a higher
  // number.
  auto kept = keep_new_namespace(host.get());
  for (int cpu = 0; !kept && cpu < CPU_SETSIZE; ++cpu) {
    cpu_set_t only{};
    CPU_SET(cpu, &only);
    if (::sched_setaffinity(0, sizeof only, &only) == 0) kept = keep_new_namespace(host.get());
  }
  return kept;
}

Result<void> hold_layers(const std::vector<LayerFile>& layers, LayerOwner owner,
                         const std::string& name) {
  const auto held = SPC_TRY(own(::open(kHeld, O_RDONLY | O_CLOEXEC), "open " + quoted(kHeld)));
  const std::string place = kSteps + ("/" + name);
  if (::mkdir(place.c_str(), 0700) != 0)
    return check(-1, "make directory " + quoted(place), EEXIST);
  Result<void> done;
  std::uint32_t shared = 0;
  owner.id_map = -1;
  auto mounts = SPC_TRY(mount_layers(layers, owner, shared));
  const pid_t child = SPC_TRY(run_aside(0, [&] {
    done = check(::setns(held.get(), CLONE_NEWNS), "enter " + quoted(kHeld));
    const auto target = open_path(AT_FDCWD, name);
    for (DetachedMount& mount : mounts)
      if (done) done = target ? attach(std::move(mount), target->get()) : target.error();
  }));
  ::waitpid(child, nullptr, 0);
  if (!done) ::rmdir(place.c_str());
  return done;
}

}  // namespace spc::agent
