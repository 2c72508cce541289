#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "launch/hooks/task_hooks.hpp"
#include "launch/host/host_side.hpp"

namespace spc {

/// The hooks' part in the start of one container, by the task that prepares it: what they say
/// becomes mounts, files and variables of it. `hooks` is always what it was prepared with.
class PreparedHooks {
 public:
  /// On the host, as the user: runs `prepare`, opens what they want mounted and puts it into
  /// `side`.
  static Result<PreparedHooks> prepare(TaskHooks& hooks, HostSide& side);

  /// Shell hooks of enroot are to be run; and what came of it.
  [[nodiscard]] static bool runs_shell_hooks(const TaskHooks& hooks);
  void add(TaskEdits of_shell_hooks) { of_shell_hooks_ = std::move(of_shell_hooks); }
  /// On the host, when the image is known: what programs of the site say to `create`.
  Result<void> create_on_host(TaskHooks& hooks, const ContainerSpec& spec);
  /// Inside, with nothing mounted yet: runs `create` and puts what comes of it into `root`, whose
  /// mount targets are those of the `side` above and may have got new ones behind. Gives back what
  /// is for the tasks.
  Result<TaskEdits> create(TaskHooks& hooks, const ContainerSpec& spec, RootSetup& root);
  /// Instead of `create`, where nothing can be made inside: without what they wanted mounted.
  void leave_out(RootSetup& root) const;
  /// Inside, when everything is mounted, and before any task is let in.
  Result<void> start(TaskHooks& hooks) { return hooks.hooks_.start(hooks.context_); }

 private:
  void settle_mounts(RootSetup& root) const;
  Result<void> add_files(const HookContext& context, RootSetup& root);
  [[nodiscard]] TaskEdits for_tasks(const TaskHooks& hooks) const;

  std::vector<StepHooks::Outcome> outcomes_;
  std::vector<std::vector<int>>
      targets_;  ///< for each outcome, of its mounts: index in the root set-up, -1: it is not there
  std::vector<std::pair<std::size_t, int>>
      denied_;  ///< outcome and index in the root set-up of each node that nobody shall open
  TaskEdits of_shell_hooks_;
};

}  // namespace spc
