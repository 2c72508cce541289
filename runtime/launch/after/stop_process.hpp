#pragma once

#include <functional>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// A process that stays on the host for as long as a step's tasks live and then runs what hooks have to do in `stop`. To
/// slurmstepd it is what `save` is (base/save_protocol.hpp): a process of the user in the step, told when all tasks have ended
/// and waited for by its pidfd. Where there is a `save`, too, it stands between the two.
class StopProcess {
 public:
  StopProcess() = default;
  /// On the host, as the user, in the leading task. `stop` is called there, with a log that reaches the user.
  static Result<StopProcess> start(const StepChannel& step, std::function<void(Log&)> stop);

  /// The step as a `save` is to know it: `step` itself if there is no such process.
  [[nodiscard]] const StepChannel& channel_of_save(const StepChannel& step) const { return of_save_.save ? of_save_ : step; }
  /// There is something to undo by now; if this was never called, `stop` is not either.
  void confirm();

 private:
  StepChannel of_save_;
  UniqueFd confirmation_;
};

}  // namespace spc
