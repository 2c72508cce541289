#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/hooks/hook_edits.hpp"
#include "launch/spec/environment.hpp"
#include "launch/task/task_notes.hpp"
#include "request/options.hpp"
#include "task/entering/arrival.hpp"
#include "task/step_agent.hpp"

namespace spc {

// --- launch ---

/// The user's parsed request.
struct Asked {
  LaunchRequest request{};
  std::map<std::string, std::string> job{};  ///< the job's environment
  enum Verdict {
    enter,
    outside,  ///< no container is requested for this task
    left,     ///< another task of the step does all the requested work
  } verdict = enter;
};

/// Parameters of a task that enters. Its texts are read without privilege only: by the leader, and
/// by the task once it is inside.
struct TaskCall {
  std::function<Result<Asked>(ReadAt)> read;
  const char* const* variables;  ///< the job's environment, unparsed
  const StepChannel& step;
  /// Process group that slurmstepd waits for at the end of the step (StepAgent::group).
  pid_t agent_group;
  const MessageStyle& style;  ///< style of messages to the user; read() may change it
  Log& log;
  std::function<void()>
      before_entering;  ///< called on the host when everything is ready; may be empty
  /// Called in the leader's process; true for the first leader of its node; may be empty.
  std::function<void(bool)> before_leading;
  /// Called in a process that the leader starts: makes the step fail.
  std::function<void()> fail_step;
  std::int64_t& task_flags;  ///< TaskStart::task_flags
};

/// Moves the calling task into the step's container. The first task starts a process, the leader,
/// which sets it up. The calling process must already run as the user, have kept its capabilities
/// for entering (spc_task_keep_privilege) and be single-threaded. Progress goes to the log. The
/// process has no capability afterwards, on success or failure. Texts of the user are read only
/// then (task/entering/arrival.hpp). Returns the environment's change for Slurm's exec, which is
/// empty for a task that stays on the host. Without a change the request is complete, as with
/// --container-explain, and the command must not be executed.
Result<std::optional<EnvironmentChange>> launch(const TaskCall& call);

// --- task context ---

/// The view of a task, or of its leader, after parsing its texts.
struct TaskContext {
  const LaunchRequest& asked;
  const std::map<std::string, std::string>& job;  ///< the job's environment
  const StepChannel& step;
  Log& log;
  const std::function<void()>& fail_step;  ///< TaskCall::fail_step

  /// Returns the file to which this node saves the container; empty if it does not.
  [[nodiscard]] std::optional<std::string> save_path() const;
};

/// Prints pyxis's lines about an import; our own style reports progress instead.
void say_import(const TaskContext& task, Event event);

/// Decides environment, work directory and the hooks' edits for this task. In the container.
/// `request`: completed by the site or, in a task, by the container.
Result<void> decide_all(TaskEntry& entry, StepHooks& hooks, const LaunchRequest& request,
                        const TaskContext& task);

}  // namespace spc
