#include "agent/builder/builder.hpp"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/builder/steps.hpp"
#include "agent/node/named_container.hpp"
#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"
#include "base/clock.hpp"
#include "base/socket.hpp"

namespace spc::agent {
namespace {

constexpr char kSteps[] = SPC_RUN_DIR "/steps";
constexpr char kHeld[] = SPC_RUN_DIR "/steps/held";

/// From here on nothing that this process mounts is visible to the host. `proc`: the node's.
Result<UniqueFd> leave_host_mounts(int proc) {
  SPC_TRY(check(::unshare(CLONE_NEWNS), "create a mount namespace"));
  SPC_TRY(check(::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr), "make mounts private"));
  return own(::openat(proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC), "open the mount namespace");
}

/// That of a task, whose sources can be copied there only: job_container/tmpfs gives it another one
/// than the agent's. One that the user has made himself could have anything at the paths that root
/// opens.
Result<void> enter_task(int mount_namespace) {
  const UniqueFd owner(::ioctl(mount_namespace, NS_GET_USERNS));
  // The parent of our own user namespace alone is out of reach.
  if (!owner || ::ioctl(owner.get(), NS_GET_PARENT) != -1 || errno != EPERM)
    return Error(ErrorKind::refused,
                 "join the task's mount namespace: it is not one of the node's");
  return check(::setns(mount_namespace, CLONE_NEWNS), "join the task's mount namespace");
}

/// The calling process and its namespace then see the container's root only.
Result<void> pivot_into(int root) {
  SPC_TRY(check(::fchdir(root), "enter the container's root"));
  SPC_TRY(check(::syscall(SYS_pivot_root, ".", "."), "pivot into the container"));
  return check(::umount2(".", MNT_DETACH), "leave the host's root");
}

/// For the user to read when the tasks have ended: the root without what is mounted in it. It is
/// attached, in a namespace that nobody else is in: from a detached mount a user could make one
/// without nosuid and nodev. No task enters before the lead answers: what it compares the root with
/// later is as it is now.
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

Result<std::vector<DetachedMount>> mount_layers(const std::vector<LayerFile>& layers,
                                                const LayerOwner& owner, std::uint32_t& shared) {
  std::vector<DetachedMount> mounts;
  for (const LayerFile& layer : layers) mounts.push_back(SPC_TRY(new_layer(layer, owner, shared)));
  return mounts;
}

/// The sources are copied where they were opened, and attached where the container is.
Result<std::vector<UniqueFd>> add_to_running(BuildOrder& order, const Task& lead,
                                             TaskMessage& ready) {
  SPC_TRY(enter_task(lead.mount_namespace.get()));
  auto sources = SPC_TRY(mount_trees(order, lead.socket.get()));
  SPC_TRY(check(::setns(order.join, CLONE_NEWNS), "join the container"));
  SPC_TRY(set_up_root(TaskMessageKind::set_up, {}, lead.socket.get(), order, sources, ready));
  if (order.is(TaskMessage::start_save)) SPC_TRY(give_bare_root(lead.socket.get()));
  return std::vector<UniqueFd>();  // the agent has them
}

/// One that sees the directory of steps alone.
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
  // Paths opened here are the node's, whatever is mounted where the task is. An error waits
  // until the leader's sources are taken.
  auto layers = mount_layers(order.image.layers, tools.layer_owner(order.uid, order.gid),
                             ready.layers_shared);
  const auto proc = SPC_TRY(open_path(AT_FDCWD, "/proc"));
  lap(Phase::layers);
  SPC_TRY(enter_task(lead.mount_namespace.get()));
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
  const auto root = SPC_TRY(mount_overlay(order, lead.socket.get(), ready.layers, workspace.get()));
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
  // Last: the mounts that are there when a user namespace gets its copy are out of reach of whoever
  // is root in it.
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

/// A mount namespace can be kept by a file only where mounts are not passed on, and no copy of the
/// host's mounts has that file. Its root is the directory of steps: what is mounted there is seen
/// in it alone, and goes when the host removes the directory below.
Result<void> set_up_held_layers() {
  const UniqueFd erofs(
      ::fsopen("erofs", FSOPEN_CLOEXEC));  // loads its module, of which import then knows
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
  // processor counts for itself: one that is made where the host's was made has a higher number.
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
