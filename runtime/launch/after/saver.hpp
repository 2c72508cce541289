#pragma once

#include <map>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/request/messages.hpp"
#include "launch/spec/environment.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// The leading task's hold on `save`, the process that writes the container to a file when all tasks of the node have ended.
/// It is a process of the user in the step's cgroup, so the step's limits and its end are its own; it lives on the host and has
/// no descriptor of the task's. slurmstepd tells it when
/// (StepChannel::finish).
class Saver {
 public:
  Saver() = default;
  /// On the host, as the user: starts it, and it opens `path` or says why that cannot be written. `name`: what the user
  /// has given the container, or nothing.
  static Result<Saver> start(const StepChannel& step, const std::string& path, const std::string& name, MessageStyle style,
                             const std::map<std::string, std::string>& job);

  explicit operator bool() const { return static_cast<bool>(line_); }
  /// Hands over the container's root and the image's record, and closes the line.
  Result<void> give(int root, int record, const ImageSettings& image);

 private:
  UniqueFd line_;
};

/// Each task, when it has entered: a container whose tasks were not all started is not saved.
void tell_saver_of_task(const StepChannel& step);

}  // namespace spc
