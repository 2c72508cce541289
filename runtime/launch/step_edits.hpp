#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook/shell_hook.hpp"
#include "hook/step_hook.hpp"
#include "launch/container_spec.hpp"
#include "launch/host_side.hpp"
#include "launch/launch.hpp"
#include "launch/site.hpp"

namespace spc {

/// What the hooks' edits come to for each task of the node, besides what is in the container by then: records `key=value\0`.
struct TaskEdits {
  std::vector<std::pair<std::string, Edits>> of_hooks;  ///< environment, limits and notes only
  std::vector<std::string> off;                         ///< names of built-in hooks that others have replaced

  [[nodiscard]] std::string serialize() const;
  static TaskEdits parse(std::string_view records);
};

/// The hooks' part in the start of one container: what they say becomes mounts, files and variables of it.
class HookedStart {
 public:
  /// What hooks may know before the image is.
  static HookContext context_of(const LaunchRequest& request, const std::map<std::string, std::string>& job_environment,
                                const Site& site);

  /// On the host, as the user: runs `prepare`, opens what they want mounted and puts it into `side`.
  Result<void> prepare(HookContext context, HostSide& side);
  /// Inside, with nothing mounted yet: runs `create` and puts what comes of it into `furniture`, whose placements are those
  /// of the `side` above and may have got new ones behind. Warnings go to `log`.
  Result<void> create(const ContainerSpec& spec, Furniture& furniture, Log& log);
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

 private:
  HookContext context_;
  std::optional<StepHooks> hooks_;
  std::vector<ShellHook> shell_hooks_;
  TaskEdits of_shell_hooks_;
  std::vector<StepHooks::Outcome> outcomes_;
  std::vector<std::vector<int>> placements_;  ///< for each outcome, of its mounts: index in the furniture, -1: it is not there
  std::vector<std::pair<std::size_t, int>> denied_;  ///< outcome and index in the furniture of each node that nobody shall open
};

/// In each task, inside, when the environment is decided: what the hooks have said for all, and what they say for this task.
Result<void> apply_to_task(const TaskEdits& edits, const LaunchRequest& request,
                           const std::map<std::string, std::string>& job_environment, const Site& site, ContainerSpec& spec,
                           Log& log);

}  // namespace spc
