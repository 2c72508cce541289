#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/request/messages.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// What a task, or its leader, knows of itself once the texts have been read.
struct TaskContext {
  const LaunchRequest& asked;
  const std::map<std::string, std::string>& job;  ///< the job's environment
  const StepChannel& step;
  Log& log;

  /// The file that the container becomes on this node, if it does.
  [[nodiscard]] std::optional<std::string> save_path() const;
};

/// The lines about an import that pyxis writes; ours say how far it is instead.
void say_import(const TaskContext& task, Event event);

}  // namespace spc
