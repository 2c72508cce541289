#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/spec/environment.hpp"
#include "request/options.hpp"
#include "task/step_agent.hpp"

namespace spc {

// --- saver ---

/// The leader's handle of the saver, which writes the container to a file when all tasks of the
/// node have ended. The saver is a process of the user in the step's cgroup, so the step's limits
/// and end apply to it. It runs on the host and has no descriptor of the task. slurmstepd starts
/// the saving (StepChannel::finish).
class Saver {
 public:
  Saver() = default;
  /// Starts the saver, on the host, as the user. It opens `path`, or reports why it cannot write
  /// there. `name`: the container's name, or empty.
  static Result<Saver> start(const StepChannel& step, const std::string& path,
                             const std::string& name, MessageStyle style,
                             const std::map<std::string, std::string>& job);

  explicit operator bool() const { return static_cast<bool>(line_); }
  /// Sends the container's root and the image record to the saver and closes the socket. `image`:
  /// the image's name if only the changes are saved; then it waits until the saver has listed the
  /// files.
  Result<void> give(int root, int record, const ImageSettings& settings, const std::string& image);

 private:
  UniqueFd line_;
};

/// Called in each task that has entered: a container is saved only if all tasks were started, and a
/// failed task explained only if it was.
void tell_saver_of_task(const StepChannel& step);

// --- stop process ---

/// A process that stays on the host while a step's tasks live, then runs the stop hooks, and makes
/// the step fail if its container was not saved. For slurmstepd it is a saver (protocol/save.hpp):
/// a process of the user in the step, notified when all tasks have ended and awaited through its
/// pidfd. It relays between slurmstepd and the saver and report of the step.
class StopProcess {
 public:
  StopProcess() = default;
  /// Starts the process, on the host, as the user, in the leader. It calls `stop` with a log that
  /// reaches the user, and `fail_step` if the saver failed.
  static Result<StopProcess> start(const StepChannel& step, std::function<void(Log&)> stop,
                                   std::function<void()> fail_step);

  /// Returns the step as seen by a saver, and by the report of its end: `step` itself if there is
  /// no such process.
  [[nodiscard]] const StepChannel& channel_of_save(const StepChannel& step) const {
    return of_save_.save ? of_save_ : step;
  }
  [[nodiscard]] const StepChannel& channel_of_report(const StepChannel& step) const {
    return of_report_.save ? of_report_ : step;
  }
  /// Enables `stop`, which is not called otherwise: the start has changes to undo from now on.
  void confirm();

 private:
  StepChannel of_save_, of_report_;
  UniqueFd confirmation_;
};

}  // namespace spc
