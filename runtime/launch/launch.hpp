#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/request/messages.hpp"
#include "launch/request/options.hpp"
#include "launch/spec/environment.hpp"
#include "task/entering/arrival.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// What the user's texts say, read.
struct Asked {
  LaunchRequest request{};
  std::map<std::string, std::string> job{};  ///< the job's environment
  enum Verdict {
    enter,
    outside,  ///< the texts ask for no container for this task
    left,     ///< another task of the step does all that was asked for
  } verdict = enter;
};

/// A task that wants to enter. Its texts are read by those who have no privilege: the leader, and
/// the task once it is inside.
struct TaskCall {
  std::function<Result<Asked>(ReadAt)> read;
  const char* const* variables;  ///< the job's environment, as it is
  const StepChannel& step;
  pid_t agent_group;  ///< which slurmstepd waits for at the end of the step (StepAgent::group)
  const MessageStyle& style;  ///< of what the user is told; read() may change it
  Log& log;
  std::function<void()>
      before_entering;  ///< called on the host when everything is ready; may be empty
  std::function<void(bool)> before_leading;  ///< called in the leader's process; whether it is the
                                             ///< first of its node; may be empty
  std::int64_t& task_flags;                  ///< TaskStart::task_flags
};

/// Values that a task needs for exec.
struct TaskEntry {
  bool outside = false;  ///< it stays on the host
  bool explained =
      false;  ///< all that was asked for is done, with --container-explain; do not execute anything
  EnvironmentChange environment{};
  std::string timing{};  ///< the timing breakdown, one line
};

/// Moves the calling task into the step's container; that of the first task is set up by a leader,
/// a process that it starts for this. The process must already run as the user, have kept its
/// privilege to enter (spc_task_keep_privilege) and be single-threaded. Progress goes to the log.
/// In any case, the process has no privilege afterwards. Nothing that the user has written is read
/// before (task/entering/arrival.hpp).
Result<TaskEntry> launch(const TaskCall& call);

}  // namespace spc
