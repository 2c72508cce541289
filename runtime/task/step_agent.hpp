#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

/// The ends of a step's two sockets, made before slurmstepd forks the tasks.
struct StepChannel {
  UniqueFd tasks;         ///< inherited by every task
  UniqueFd parked_agent;  ///< a socket in which a message with the agent's end waits
  UniqueFd step, save;    ///< slurmstepd's and `save`'s end (base/save_protocol.hpp), inherited by every task

  /// The agent's end is nobody's descriptor until the agent takes it: only then do the tasks see that it has died, as with
  /// contain_spank slurmstepd cannot close anything before they start.
  static Result<StepChannel> open();

  /// In slurmstepd, when the last of this node's tasks has `ended`: if a `save` was started, tells it so, passes on what it
  /// says, and returns when it is done or gone. It is the user's process, in the step: what ends the step ends it. `ended`,
  /// `killed`: how many tasks, and how many of them by SIGTERM or SIGKILL.
  Result<void> finish(std::uint32_t ended, std::uint32_t killed, const std::function<void(const char* line)>& tell_user);
};

/// slurmstepd's hold on the step's agent.
class StepAgent {
 public:
  StepAgent() = default;
  StepAgent(StepAgent&&) = default;
  StepAgent& operator=(StepAgent&&) = default;

  /// Forks and executes the agent for this step. Safe in slurmstepd with its threads, with its effective ids dropped
  /// (user_init) and inside the temporary clone of contain_spank: only raw system calls in the child. `stepd` is the
  /// process that the agent must not outlive.
  static Result<StepAgent> start(UniqueFd parked_end, const StepId& step, pid_t stepd);

  /// Kills the agent and reaps it; never waits for what it was doing. Needs the privilege to signal a process of root.
  void stop();

 private:
  StepId step_;
  pid_t pid_ = -1;
};

/// Runs `agent setup` to its end: directories of the node. As root, when slurmd starts.
Result<void> set_up_node_for(uid_t service_uid, gid_t service_gid);

/// Runs `agent epilog` to its end: what belongs to a job that has ended is taken away. As root.
Result<void> clean_up_after_job(uid_t uid, std::uint32_t job);

}  // namespace spc
