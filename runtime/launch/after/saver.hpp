#pragma once

#include <map>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/request/messages.hpp"
#include "launch/spec/environment.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// The leader's handle of the saver, which writes the container to a file when all tasks of the
/// node have ended. It is a process of the user in the step's cgroup, so the step's limits and end
/// apply to it; it runs on the host and has no descriptor of the task. slurmstepd tells it when to
/// start (StepChannel::finish).
class Saver {
 public:
  Saver() = default;
  /// On the host, as the user: starts it; it opens `path`, or reports why that cannot be written.
  /// `name`: the container's name, or empty.
  static Result<Saver> start(const StepChannel& step, const std::string& path,
                             const std::string& name, MessageStyle style,
                             const std::map<std::string, std::string>& job);

  explicit operator bool() const { return static_cast<bool>(line_); }
  /// Passes on the container's root and the image record, and closes the socket. `image`: its name
  /// if only its changes are written; then it waits until the saver has seen what is there.
  Result<void> give(int root, int record, const ImageSettings& settings, const std::string& image);

 private:
  UniqueFd line_;
  int step_ = -1;  ///< the tasks' end of the channel to it
};

/// Each task, when it has entered: a container is not saved unless all tasks were started.
void tell_saver_of_task(const StepChannel& step);

}  // namespace spc
