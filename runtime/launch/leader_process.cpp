#include "launch/leader_process.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <utility>
#include <vector>

#include "base/socket.hpp"
#include "launch/leader.hpp"
#include "protocol/wire_error.hpp"
#include "task/enter.hpp"

namespace spc {
namespace {

/// From the leader to the task that waits for it: how it has ended, its last word; or a location, and with it the socket on
/// which user-source is to answer for podman.
struct LeaderMessage {
  enum Kind : std::uint32_t { led = 1, failed, start_user_source } kind{};
  Led how{};
  WireError error;
  Text<4096> location;
};

Result<void> ask_for_user_source(int task, int socket, const std::string& location) {
  LeaderMessage message;
  message.kind = LeaderMessage::start_user_source;
  message.location.set(location);
  const int passed[] = {socket};
  return send_struct(task, message, passed);
}

/// Holds lines back until it is known whether another leader says the same.
class FirstLog final : public Log {
 public:
  FirstLog(Log& log, bool holds) : log_(log), holds_(holds) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    if (!holds_) return log_.write(level, line);
    lines_.emplace_back(level, line);
  }
  void tell() {
    holds_ = false;
    for (const auto& [level, line] : std::exchange(lines_, {})) log_.write(level, line);
  }

 private:
  Log& log_;
  bool holds_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

Result<Led> lead(const TaskCall& call, AgentLine& line, const AgentMessage& policy, int notes, ChildOf parent) {
  SPC_TRY(keep_only_chroot());
  const Asked asked = SPC_TRY(call.read(ReadAt::node));
  FirstLog log(call.log, parent == ChildOf::us);
  const auto tell = [&] { log.tell(); };
  const TaskContext task{asked.request, asked.job, call.step, log};
  auto led = Leader(task, line, notes, parent).lead(policy, tell);
  if (!led || *led != Led::again) tell();
  return led;
}

/// The leader's process. It ends with the agent or its task, and then what it has started. slurmstepd waits for the agent's
/// group: if Slurm finds a leader in the step's cgroup, it sleeps for a second. With --pty the task has another session, and
/// setpgid fails.
int lead_and_report(const TaskCall& call, AgentLine& line, const AgentMessage& policy, int notes, ChildOf parent, int task) try {
  ::prctl(PR_SET_NAME, "leader");
  if (call.agent_group > 0) ::setpgid(0, call.agent_group);
  ::close(call.step.tasks.get());  // from here on the agent takes no descriptor from us
  line.user_source().start_for_podman(
      [task](int socket, const std::string& location) { return ask_for_user_source(task, socket, location); });
  const auto led = lead(call, line, policy, notes, parent);
  LeaderMessage message;
  message.kind = led ? LeaderMessage::led : LeaderMessage::failed;
  if (led) message.how = *led;
  if (!led) message.error = WireError(line.fail(led.error()));
  return send_struct(task, message) ? 0 : 1;
} catch (const std::exception&) {  // out of memory: the task sees that we are gone
  return 1;
}

/// The socket is the leader's only until the process has it.
Result<Child> start_for_podman(const TaskCall& call, const LeaderMessage& message, std::vector<UniqueFd> passed) {
  if (passed.size() != 1) return Error(ErrorKind::internal, "start user-source: no socket");
  std::vector<std::string> environment;
  for (auto variable = call.variables; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  return start_user_source(passed.front().get(), message.location.str(), std::move(environment));
}

/// Serves it until its last word.
Result<Led> wait_for_leader(const TaskCall& call, AgentLine& line, int leader) {
  Child user_source;
  for (;;) {
    LeaderMessage message;
    auto passed = receive_struct(leader, message, 1);
    if (!passed) {
      let_scancel_end_us();
      return line.fail(Error(ErrorKind::system, "set up the container: the leader exited unexpectedly"));
    }
    if (message.kind == LeaderMessage::led) return message.how;
    if (message.kind == LeaderMessage::failed) return message.error.error();
    auto started = start_for_podman(call, message, *std::move(passed));
    // Without it, `import` sees that nobody answers.
    if (started) user_source = *std::move(started);
  }
}

}  // namespace

void EndingLeader::await() {
  // A task that ends before the leader is gone makes Slurm wait for a second: it looks for what is left of the step, and sleeps.
  pollfd end{.fd = process.watch(), .events = POLLIN, .revents = 0};
  constexpr int kMilliseconds = 200;
  if (end.fd >= 0) ::poll(&end, 1, kMilliseconds);
  process = {};
}

/// Its parent is this process: slurmstepd, whenever a child of its own has ended that is no task, does not look for 0.1 s
/// whether tasks have. But what is started for the time after the tasks is to be slurmstepd's child.
Result<Led> run_leader(const TaskCall& call, AgentLine& line, AgentMessage& policy,
                       Entrypoint& entrypoint, EndingLeader& leader) {
  if (policy.descriptors.size() != 2) return Error(ErrorKind::internal, "no notes for the leader");
  SPC_TRY(entrypoint.write_down_in(std::move(policy.descriptors[1])));
  auto led = Result<Led>(Led::again);
  for (const ChildOf parent : {ChildOf::us, ChildOf::our_parent}) {
    if (!led || *led != Led::again) break;
    auto [ours, theirs] = SPC_TRY(socket_pair());
    const auto work = [&, &others = ours, task = theirs.get()] {
      others.reset();
      return lead_and_report(call, line, policy, entrypoint.notes(), parent, task);
    };
    const int death_signal = parent == ChildOf::us ? SIGKILL : 0;
    leader.process = SPC_TRY(Child::run(work, "start the leader", death_signal, parent));
    theirs.reset();
    led = wait_for_leader(call, line, ours.get());
  }
  if (led && *led != Led::set_up) entrypoint.write_nothing();
  return led;
}

}  // namespace spc
