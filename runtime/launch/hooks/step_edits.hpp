#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook_engine/shell_hook.hpp"
#include "hook_engine/step_hook.hpp"
#include "launch/host/host_side.hpp"
#include "launch/inside/task_edits.hpp"
#include "launch/policy/site.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/container_spec.hpp"

namespace spc {

/// The hooks' part in the start of one container: what they say becomes mounts, files and variables of it.
class HookedStart {
 public:
  /// What hooks may know before the image is.
  static HookContext context_of(const LaunchRequest& request, const std::map<std::string, std::string>& job_environment,
                                const Site& site);

  /// Looks for the hooks, which `prepare` does by itself. On the host.
  Result<void> find(HookContext context, Log& log);
  /// Whether one of them has something to do when all tasks have ended, and what does it, in a process of its own.
  [[nodiscard]] bool has_stop() const { return hooks_ && hooks_->has_stop(context_); }
  void stop(Log& log) const { hooks_->stop(context_, log); }
  /// Whether the hooks of this container were prepared by this process.
  [[nodiscard]] bool prepared() const { return prepared_; }
  /// On the host, as the user: runs `prepare`, opens what they want mounted and puts it into `side`. `log`, for what hooks say
  /// to the user, must outlive this.
  Result<void> prepare(HookContext context, HostSide& side, Log& log);
  /// In each task, on the host, when the image is known: what programs of the site say to `create`, if the hooks of this
  /// container were prepared here, and to `task`. Inside there is only the image. `edits`: of the task that prepared.
  Result<void> before_entering(HookContext context, const TaskEdits& edits, const ContainerSpec& spec, Log& log);
  /// Inside, with nothing mounted yet: runs `create` and puts what comes of it into `furniture`, whose placements are those
  /// of the `side` above and may have got new ones behind.
  Result<void> create(const ContainerSpec& spec, Furniture& furniture);
  /// Instead of `create`, where nothing can be made inside: without what they wanted mounted.
  void leave_out(Furniture& furniture) const;
  /// Found by `prepare`: those of enroot's kind, which shell_hooks.hpp runs.
  [[nodiscard]] const std::vector<ShellHook>& shell_hooks() const { return shell_hooks_; }
  [[nodiscard]] bool runs_shell_hooks() const;
  [[nodiscard]] const HookContext& context() const { return context_; }
  /// What those have said.
  void add(TaskEdits of_shell_hooks) { of_shell_hooks_ = std::move(of_shell_hooks); }
  /// After `create`: for the tasks.
  [[nodiscard]] TaskEdits for_tasks() const;
  /// Inside, when everything is mounted, and before any task is let in.
  Result<void> start();
  /// In each task, inside, when the environment is decided: what the hooks have said for all, and what they say for this task.
  Result<void> apply_to_task(const TaskEdits& edits, ContainerSpec& spec, Log& log);
  /// How long hooks have taken and which the longest, in words; empty if none has. `edits`: of the task that prepared.
  [[nodiscard]] std::string timing(const TaskEdits& edits) const;

 private:
  HookContext context_;
  std::optional<StepHooks> hooks_;
  std::vector<ShellHook> shell_hooks_;
  TaskEdits of_shell_hooks_;
  bool prepared_ = false;  ///< here, and not in the step that has started the container, or in another task
  std::vector<StepHooks::Outcome> outcomes_;
  std::vector<std::vector<int>> placements_;  ///< for each outcome, of its mounts: index in the furniture, -1: it is not there
  std::vector<std::pair<std::size_t, int>> denied_;  ///< outcome and index in the furniture of each node that nobody shall open
};

}  // namespace spc
