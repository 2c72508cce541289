// The task's part in a start: its connection to the agent, the leader's process, and entering.

#include "task/entering/arrival.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <string_view>
#include <utility>

#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "protocol/user_source.hpp"
#include "task/entering/enter.hpp"

namespace spc {

// --- visit ---

namespace {

constexpr std::string_view kSetUp = "set up the root file system";

/// Reports the child's error to the process that has started it. Returns the exit status.
int status_of(const Result<void>& done, int answer) {
  if (done) return 0;
  const WireError error(done.error());
  [[maybe_unused]] const auto written = ::pwrite(answer, &error, sizeof error, 0);
  return 1;
}

}  // namespace

Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what,
                       WireError& said) {
  const UniqueFd answer(::memfd_create("spank-container answer", MFD_CLOEXEC));
  if (!answer) return Error::from_errno(errno, std::string(what) + ": make a memory file");
  auto child = SPC_TRY(Child::run([&] { return status_of(work(), answer.get()); }, what));
  if (child.wait().success()) return {};
  if (::pread(answer.get(), &said, sizeof said, 0) != sizeof said) said = {};
  return Error(ErrorKind::system, std::string(what) + ": helper exited unexpectedly");
}

Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what) {
  WireError said;
  auto done = run_apart(work, what, said);
  return said.is_set() ? said.error() : std::move(done);
}

Result<void> visit_root(int root, const std::function<Result<void>()>& inside) {
  const auto visit = [&]() -> Result<void> {
    SPC_TRY(enter_root(root));
    return inside();
  };
  return run_apart(visit, kSetUp);
}

// --- arrival ---

namespace {

/// Index of the first of the container's own namespaces in a `ready` message. The mount namespace,
/// the record and the notes precede it.
constexpr std::size_t kFirstNamespace = 3;

Error broken(const char* why) { return {ErrorKind::internal, why}; }

// --- agent connection ---

/// Requests a socket to the agent on the step's common one, and receives it there. Tasks may
/// receive each other's sockets: the agent does not distinguish them.
Result<UniqueFd> join(int step) {
  if (!send_struct(step, TaskMessage{.kind = TaskMessageKind::join})) return agent_has_ended();
  char byte = 0;
  auto passed = receive_struct(step, byte, 1);
  if (!passed || passed->empty()) return agent_has_ended();
  return std::move(passed->front());
}

/// Sends this task's mount namespace to the builder. Must be called before the user's data is read.
Result<void> pass_mounts(int builder) {
  const UniqueFd mount_namespace(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!mount_namespace) return Error::from_errno(errno, "open the task's mount namespace");
  const int passed[] = {mount_namespace.get()};
  if (!send_struct(builder, char{}, passed)) return agent_has_ended();
  return {};
}

/// Waits until the container is ready or, before that, this task is to lead. The leader reports
/// progress and warnings for all tasks of the node: `import` has ended when the leader has.
Result<void> await(int agent, const TaskStart& start, Arrival& arrival) {
  for (;;) {
    arrival.ready = SPC_TRY(receive_from_agent(agent));
    const TaskMessage& message = arrival.ready;
    switch (message.kind) {
      case TaskMessageKind::progress:
      case TaskMessageKind::warning: continue;
      case TaskMessageKind::lead:
      case TaskMessageKind::ready:
      case TaskMessageKind::failed:
        if (message.policy.stamp != 0) start.task_flags = message.policy.task_flags;
        break;
      default: break;
    }
    const bool is_turn = message.kind == TaskMessageKind::lead && !arrival.led;
    if (message.kind == TaskMessageKind::failed) arrival.failure = message.failure;
    if (!is_turn && message.kind != TaskMessageKind::ready)
      return broken("unexpected message from the agent");
    return {};
  }
}

/// Sends the error to the agent, which passes it to every task, including this one.
Error tell_agent(int agent, const Error& error, const TaskStart& start, Arrival& arrival) {
  const TaskMessage message{.kind = TaskMessageKind::failed, .failure = WireError(error)};
  if (send_struct(agent, message)) (void)await(agent, start, arrival);
  return error;
}

// --- leader process ---

/// Locks the notes until they contain the entrypoint's outcome.
Result<void> lock_notes(const UniqueFd& notes) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  if (::fcntl(notes.get(), F_SETLK, &whole) != 0)
    return Error::from_errno(errno, "lock the entrypoint's notes");
  return {};
}

/// Runs as the leader's process. It ends with the agent or its task, and ends the processes that it
/// has started. slurmstepd waits for the agent's group: if Slurm finds a leader in the step's
/// cgroup, it sleeps for a second. With --pty the task has another session, and setpgid fails.
int lead_without_privilege(const TaskStart& start, const LeaderStart& leader) {
  ::prctl(PR_SET_NAME, "leader");
  if (start.agent_group > 0) ::setpgid(0, start.agent_group);
  ::close(start.step);  // only tasks join
  const auto kept = keep_only_chroot();
  if (kept) return start.lead(leader);
  LeaderMessage message;
  message.kind = LeaderMessage::failed;
  message.error = WireError(kept.error());
  return send_struct(leader.task, message) ? 0 : 1;
}

/// Only the leader uses the socket until the process has it.
Result<Child> start_for_podman(const TaskStart& start, const LeaderMessage& message,
                               std::vector<UniqueFd> passed) {
  if (passed.size() != 1) return broken("start user-source: no socket");
  std::vector<std::string> environment;
  for (auto variable = start.variables; *variable != nullptr; ++variable) {
    // Variables that srun has set for its tasks alone: spank/across_nodes.cpp.
    const bool is_ours = std::string_view(*variable).starts_with("SLURM_SCONTAINER_");
    if (!is_ours) environment.emplace_back(*variable);
  }
  return start_user_source(passed.front().get(), message.location.str(), std::move(environment));
}

/// Serves the leader until its last message, which is returned in `message`.
Result<void> wait_for_leader(const TaskStart& start, int agent, int leader, Arrival& arrival,
                             LeaderMessage& message) {
  Child user_source;
  for (;;) {
    auto passed = receive_struct(leader, message, 1);
    if (!passed) {
      let_scancel_end_us();
      const Error gone(ErrorKind::system, "set up the container: the leader exited unexpectedly");
      return tell_agent(agent, gone, start, arrival);
    }
    if (message.kind == LeaderMessage::led) return {};
    if (message.kind == LeaderMessage::failed) {
      arrival.failure = message.error;
      return broken("set up the container: the leader failed");
    }
    auto started = start_for_podman(start, message, *std::move(passed));
    // Otherwise `import` reads end of file from its socket.
    if (started) user_source = *std::move(started);
  }
}

/// Starts a leader as a child of this process: when a child of slurmstepd that is no task ends,
/// slurmstepd does not look for ended tasks for 0.1 s. Processes that outlive the tasks, however,
/// must be slurmstepd's children.
Result<void> run_leader(const TaskStart& start, int agent, Arrival& arrival, bool& explains) {
  AgentMessage policy = std::move(arrival.ready);
  if (policy.descriptors.size() != 3) return broken("no notes for the leader");
  SPC_TRY(pass_mounts(policy.descriptors.back().get()));
  policy.descriptors.pop_back();  // the leader reads texts
  arrival.own_notes = std::move(policy.descriptors[1]);
  SPC_TRY(lock_notes(arrival.own_notes));
  LeaderMessage last;
  for (const ChildOf parent : {ChildOf::us, ChildOf::our_parent}) {
    auto [ours, theirs] = SPC_TRY(socket_pair());
    const LeaderStart leader{agent, policy, arrival.own_notes.get(), parent, theirs.get()};
    const auto work = [&, &others = ours] {
      others.reset();
      return lead_without_privilege(start, leader);
    };
    const int death_signal = parent == ChildOf::us ? SIGKILL : 0;
    arrival.leader.process = SPC_TRY(Child::run(work, "start the leader", death_signal, parent));
    theirs.reset();
    SPC_TRY(wait_for_leader(start, agent, ours.get(), arrival, last));
    if (last.how != LeaderEnd::again) break;
  }
  if (last.how != LeaderEnd::set_up) arrival.own_notes.reset();
  arrival.led = last.how;
  explains = last.explains;
  return {};
}

// --- entering the container ---

bool stays(LeaderEnd how) {
  return how == LeaderEnd::outside || how == LeaderEnd::pulled || how == LeaderEnd::removed ||
         how == LeaderEnd::left;
}

/// Receives the notes, and the answers that need the host.
Result<void> take_notes(const TaskStart& start, Arrival& arrival) {
  auto& passed = arrival.ready.descriptors;
  if (passed.size() < kFirstNamespace) return broken("no namespace to enter");
  arrival.notes = std::move(passed[2]);
  if (!arrival.ready.asks_host) return {};
  arrival.answer.reset(::memfd_create("spank-container answer", MFD_CLOEXEC));
  if (!arrival.answer) return Error::from_errno(errno, "create an answer for the task");
  const auto ask = [&]() -> Result<void> {
    SPC_TRY(give_up_privilege());
    return start.ask_host(arrival, arrival.answer.get());
  };
  return run_apart(ask, "ask the host's hooks", arrival.failure);
}

Result<void> wait_and_enter(const TaskStart& start, Arrival& arrival) {
  arrival.probe.reset(::open(own_program("container-helper").c_str(), O_PATH | O_CLOEXEC));
  if (!arrival.probe) arrival.no_probe = errno;
  const UniqueFd agent = SPC_TRY(join(start.step));
  SPC_TRY(await(agent.get(), start, arrival));
  bool explains = false;
  if (arrival.ready.kind == TaskMessageKind::lead) {
    arrival.is_first = arrival.ready.manifest == Digest();
    SPC_TRY(run_leader(start, agent.get(), arrival, explains));
    if (stays(*arrival.led)) return {};
    SPC_TRY(await(agent.get(), start, arrival));
    if (*arrival.led == LeaderEnd::explained) return {};
  }
  // Another process of ours, not the leader's parent, enters.
  if ((arrival.ready.namespaces & own_pid) != 0) arrival.leader.await();
  if (start.before_entering && !explains) start.before_entering();
  SPC_TRY(take_notes(start, arrival));
  auto& passed = arrival.ready.descriptors;
  const auto namespaces =
      SPC_TRY(ContainerNamespaces::take(passed, arrival.ready.namespaces, kFirstNamespace));
  return enter_container(namespaces);
}

}  // namespace

void let_scancel_end_us() {
  constexpr int kMilliseconds = 500;
  ::poll(nullptr, 0, kMilliseconds);
}

Error agent_has_ended() {
  let_scancel_end_us();
  return Error(ErrorKind::unavailable, "set up the container: the agent exited")
      .hint("try again; see slurmd's log on the node");
}

Result<AgentMessage> receive_from_agent(int socket) {
  AgentMessage message;
  auto& fixed = static_cast<TaskMessage&>(message);
  auto descriptors = receive_struct(socket, fixed, kMaxDescriptorsPerMessage);
  if (!descriptors) return agent_has_ended();
  message.descriptors = *std::move(descriptors);
  return message;
}

void EndingLeader::await() {
  // A task that ends before the leader makes Slurm wait for a second: it looks for remaining
  // processes of the step, and sleeps.
  pollfd end{.fd = process.watch(), .events = POLLIN, .revents = 0};
  constexpr int kMilliseconds = 200;
  if (end.fd >= 0) ::poll(&end, 1, kMilliseconds);
  process = {};
}

void give_up_entering() {
  if (!stay_outside()) ::_exit(1);
}

Result<void> arrive(const TaskStart& start, Arrival& arrival) {
  auto entered = keep_nothing_else();
  if (entered) entered = wait_and_enter(start, arrival);
  const bool is_inside = entered && arrival.notes;
  if (!is_inside) give_up_entering();
  return entered;
}

Result<Child> start_user_source(int socket, const std::string& location,
                                std::vector<std::string> environment) {
  const std::string path = own_program("user-source");
  Program program{.path = path,
                  .arguments = {path, location},
                  .environment = std::move(environment),
                  .descriptors = {{socket, kUserSourceSocket}},
                  .group = Program::Group::own};
  program.prepare = [] { return stay_outside().has_value(); };
  return Child::start(program);
}

}  // namespace spc
