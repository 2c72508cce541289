#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook_engine/shell_hook.hpp"
#include "hook_engine/step_hook.hpp"
#include "launch/inside/task_edits.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/container_spec.hpp"

namespace spc {

/// What hooks may know before the image is.
HookContext hook_context(const LaunchRequest& request,
                         const std::map<std::string, std::string>& job_environment,
                         const SitePolicy& site);

/// Who asked for a mount, and of whom an error or a note is.
std::string name_in_errors(const std::string& hook);

/// The hooks as each task has them, found on the host. The log they were found with must outlive
/// them.
class TaskHooks {
 public:
  /// For a task that may prepare a container.
  static Result<TaskHooks> find(HookContext context, Log& log);
  /// For one that enters what another has prepared, with these edits; on the host.
  static Result<TaskHooks> find_for_task(HookContext context, const TaskEdits& edits, Log& log);
  /// The same inside, where no file of the site is: what its hooks have `said` on the host.
  static TaskHooks inside(HookContext context, const TaskEdits& edits, const TaskEdits& said,
                          Log& log);

  /// Whether one of them has something to do when all tasks have ended, and what does it, in a
  /// process of its own.
  [[nodiscard]] bool has_stop() const { return hooks_.has_stop(context_); }
  void stop(Log& log) const { hooks_.stop(context_, log); }
  /// On the host, when the image is known: what programs of the site say to `task`. Inside there is
  /// only the image.
  Result<void> before_entering(const ContainerSpec& spec);
  /// Whether one of them says anything; and the same, for the process that then is inside.
  [[nodiscard]] bool asks_host() const { return hooks_.asks_host(context_); }
  Result<TaskEdits> said_on_host(const ContainerSpec& spec);
  /// Inside, when the environment is decided: what the hooks have said for all, and what they say
  /// for this task.
  Result<void> apply(const TaskEdits& edits, ContainerSpec& spec, Log& log);
  /// How long hooks have taken and which the longest, in words; empty if none has. `edits`: of the
  /// task that prepared.
  [[nodiscard]] std::string timing(const TaskEdits& edits) const;
  /// Those of enroot's kind, which shell_hooks.hpp runs.
  [[nodiscard]] const std::vector<ShellHook>& shell_hooks() const { return shell_hooks_; }
  [[nodiscard]] const HookContext& context() const { return context_; }

 private:
  friend class PreparedHooks;
  TaskHooks(HookContext context, StepHooks hooks)
      : context_(std::move(context)), hooks_(std::move(hooks)) {}
  void tell_of_image(const ContainerSpec& spec);

  HookContext context_;
  StepHooks hooks_;
  std::vector<ShellHook> shell_hooks_;
  bool prepares_ = false;  ///< what this process has counted is in what it wrote down
};

}  // namespace spc
