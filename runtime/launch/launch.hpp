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

/// What a task needs to be executed inside, where it already is; nothing if it stays outside.
struct TaskEntry {
  bool explained = false;  ///< --container-explain: all has been said, and nothing is to be executed
  EnvironmentChange environment;
  std::string timing;  ///< one line for people: where the time of the start went
};

/// Takes the calling task into the step's container; the first task of the node prepares it. The process must already be
/// the user, have kept its privilege to enter (keep_privilege_to_enter) and be single-threaded. Progress goes to `log`.
/// `before_entering`, if it is not empty, is called on the host when everything is ready. However it ends, the process has no
/// privilege left.
Result<TaskEntry> launch(const LaunchRequest& request, const std::map<std::string, std::string>& job_environment,
                         const StepChannel& step, Log& log, const std::function<void()>& before_entering);

}  // namespace spc
