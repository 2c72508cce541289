#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/environment.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// What a task in the container needs for exec; empty if it stays on the host.
struct TaskEntry {
  bool explained = false;  ///< --container-explain: everything was printed; do not execute anything
  EnvironmentChange environment;
  std::string timing;  ///< the timing breakdown, one line
};

/// Moves the calling task into the step's container; the leader sets it up. The process must already run as
/// the user, have kept its privilege to enter (keep_privilege_to_enter) and be single-threaded. Progress goes to `log`.
/// `before_entering`, if not empty, is called on the host when everything is ready. In any case, the process has no
/// privilege afterwards.
Result<TaskEntry> launch(const LaunchRequest& request, const std::map<std::string, std::string>& job_environment,
                         const StepChannel& step, Log& log, const std::function<void()>& before_entering);

}  // namespace spc
