#pragma once

#include <functional>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// A process that stays on the host while a step's tasks live and then runs the stop hooks. To
/// slurmstepd it looks like a saver (protocol/save.hpp): a process of the user in the step, told
/// when all tasks have ended and awaited through its pidfd. If there is a saver, too, it relays
/// between the two.
class StopProcess {
 public:
  StopProcess() = default;
  /// On the host, as the user, in the leader. `stop` is called there, with a log that reaches the
  /// user.
  static Result<StopProcess> start(const StepChannel& step, std::function<void(Log&)> stop);

  /// The step as seen by a saver: `step` itself if there is no such process.
  [[nodiscard]] const StepChannel& channel_of_save(const StepChannel& step) const {
    return of_save_.save ? of_save_ : step;
  }
  /// From now on there is something to undo; unless this was called, `stop` is not called either.
  void confirm();

 private:
  StepChannel of_save_;
  UniqueFd confirmation_;
};

}  // namespace spc
