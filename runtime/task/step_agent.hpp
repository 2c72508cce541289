#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

/// The ends of a step's two sockets, created before slurmstepd forks the tasks.
struct StepChannel {
  UniqueFd tasks;         ///< inherited by every task
  UniqueFd parked_agent;  ///< a socket with a queued message that holds the agent's end
  UniqueFd step,
      save;         ///< slurmstepd's and `save`'s end (protocol/save.hpp), inherited by every task
  UniqueFd keeper;  ///< slurmstepd's end of kAgentKeeper: tasks close it, slurmstepd's exit does

  /// Creates the channel. No process has the agent's end until the agent receives it. Only then do
  /// tasks notice the agent's death, since with contain_spank slurmstepd cannot close descriptors
  /// before they start.
  static Result<StepChannel> open();

  /// Called in slurmstepd when the last of this node's tasks has ended: if a saver was started,
  /// notifies it, forwards its lines, and returns when it is done or has ended. The saver is a
  /// process of the user in the step, so it ends with the step. `ended`, `killed`, `failed`: number
  /// of tasks, and of those ended by SIGTERM or SIGKILL, and with a status that is not 0.
  Result<void> finish(std::uint32_t ended, std::uint32_t killed, std::uint32_t failed,
                      const std::function<void(const char* line)>& tell_user);
};

/// slurmstepd's handle of the step's agent.
class StepAgent {
 public:
  /// Forks and executes the agent for this step. Safe in slurmstepd with its threads, with its
  /// effective IDs dropped (user_init) and in the temporary clone of contain_spank: only raw system
  /// calls in the child. The agent must not outlive `stepd`.
  static Result<StepAgent> start(UniqueFd parked_end, const StepId& step, pid_t stepd);

  /// Ends the agent, which ends its helpers. Kills it after a moment, and never waits for long. On
  /// return all processes that the agent had started have ended, however the agent ended. Signals
  /// reach these processes only, even if their numbers have been reused. The caller needs the
  /// privilege to signal a root process. Returns an Error of work for the job's later steps.
  Result<void> stop(const StepChannel& channel);

  /// Returns the process group that stop() waits for: of the agent, of processes that it starts,
  /// and of those that join the group.
  [[nodiscard]] pid_t group() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd process_;  ///< pidfd of the agent; empty with contain_spank
};

/// Runs the agent, as root, with a command that takes two numbers (agent/main.cpp): `setup`,
/// `epilog`. `what`: for the error.
Result<void> run_agent(const char* command, std::uint32_t first, std::uint32_t second,
                       const std::string& what);

}  // namespace spc
