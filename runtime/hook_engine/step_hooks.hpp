#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook_engine/hook_directory.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- site program ---

/// Runs a program of the site as the calling user until it exits, and returns its output of at most
/// 1 MiB. It has a session of its own, / as work directory, no capabilities and no_new_privs. Its
/// environment is built, not inherited: PATH, LANG, HOME, USER, LOGNAME, the job's SLURM_*, and its
/// own. The image's variables are data in the context. Its descriptors are 0 to 2, and its own file
/// at 3 if it is executed by `descriptor`, since its path is not reachable in a container. Writes
/// lines of its standard error to `log` with the hook's name, escaped, at most 200 of 1,000 bytes.
/// Its process group is killed when it has ended, at the time or output limit, or with the calling
/// process, which must be single-threaded. An error unless it exits with status 0: its file, its
/// exit status or signal, and its last lines.
Result<std::string> run_site_program(const std::string& hook, const ProgramEdit& program,
                                     std::string_view input, const HookContext& context, Log& log,
                                     int descriptor = -1);

/// Runs an OCI runtime hook in the same way, with the container state on standard input and a
/// bundle (a directory with config.json) that is removed afterwards. `status`: creating, created,
/// running or stopped. `root`: path of the container's root.
Result<void> run_oci_hook(const std::string& hook, const ProgramEdit& program,
                          std::string_view status, const std::string& root,
                          const HookContext& context, Log& log);

// --- step hooks ---

/// The edits of a step's hooks, in the order of the hooks. `create` completes those of `prepare`.
/// Each task of the node gets its part of them as records `key=value\0`, in addition to what was
/// applied to the container.
struct HookEdits {
  struct OfHook {
    std::string hook;
    Edits edits{};
    std::vector<int> mounts{};  ///< their indexes in RootSetup::targets; -1: missing
    std::vector<int> denied{};  ///< indexes of the device nodes that must not be opened

    bool operator==(const OfHook&) const = default;
  };
  std::vector<OfHook> of_hooks;
  std::vector<std::string> off;               ///< built-in hooks that do not run
  std::map<std::string, std::uint64_t> took;  ///< microseconds per hook so far

  /// Returns the records: of each hook environment, limits, notes and warnings only.
  [[nodiscard]] std::string serialize() const;
  static HookEdits parse(std::string_view records);
};

class StepHook;

/// The hooks of a step in execution order, by name. The log passed to them must outlive them: site
/// hooks write to the user.
class StepHooks {
 public:
  /// Finds built-in and site hooks, on the host, without those that are replaced by a hook of the
  /// same name or disabled (hooks_off in config.toml). `users`: as for find_shell_hooks().
  static Result<StepHooks> find(HookContext context, Log& log, const std::string& users);
  /// Finds the hooks, on the host, for a task that enters a container prepared by another with
  /// these edits.
  static Result<StepHooks> find_for_task(HookContext context, const HookEdits& edits, Log& log);
  /// Does the same for another directory. `shell_hooks` replace built-in hooks.
  static Result<StepHooks> find_in(const std::string& directory, HookContext context, Log& log,
                                   std::vector<ShellHook> shell_hooks = {});
  /// Returns the hooks of a task inside such a container, where the site's files are not visible:
  /// `said` are the edits of the site's hooks for this task (ask_host).
  static StepHooks inside(HookContext context, const HookEdits& edits, HookEdits said, Log& log);

  StepHooks(StepHooks&&) noexcept;
  ~StepHooks();

  // Each stage runs all hooks that take part and stops at the first error, which names its hook. A
  // refusal is an error.

  Result<HookEdits> prepare();
  /// Runs the site's programs for `create` before the container is entered.
  Result<void> create_on_host(const HookEdits& prepared);
  Result<void> create(HookEdits& prepared);
  /// Runs the site's programs for `task` in each task, before the container is entered.
  Result<void> task_on_host();
  Result<HookEdits> task();
  /// Returns whether each task needs ask_host(), which runs task_on_host() and returns the edits of
  /// the site's hooks, for the process that is then inside.
  [[nodiscard]] bool asks_host() const;
  Result<HookEdits> ask_host();
  /// Runs in the container, when everything is mounted and before any task enters.
  Result<void> start();
  /// Returns whether any hook takes part in `stop`.
  [[nodiscard]] bool has_stop() const;
  /// Runs all of them, on the host, when all tasks have ended, in a separate process. Failures go
  /// to `log`.
  void stop(Log& log) const;

  /// Returns the enroot hooks, which shell_hooks.hpp runs, and whether there is any to run.
  [[nodiscard]] const std::vector<ShellHook>& shell_hooks() const { return shell_hooks_; }
  [[nodiscard]] bool runs_shell_hooks() const;
  /// Returns what the hooks know; stages that come later know more.
  [[nodiscard]] HookContext& context() { return context_; }
  /// Returns each hook with its origin and the hook that it replaces, and the disabled ones, in
  /// order: for --container-explain.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& origins() const {
    return origins_;
  }
  /// Returns the hooks' total time and the slowest hook as text; empty if no hook ran. `edits`:
  /// those of the task that prepared.
  [[nodiscard]] std::string timing(const HookEdits& edits) const;

 private:
  StepHooks(HookContext context, Log& log, std::vector<ShellHook> shell_hooks);
  void add_builtins(const std::vector<HookFile>& files);
  Result<void> add_files(const std::vector<HookFile>& files);
  void sort();
  Result<HookEdits> task(bool by_site_alone);
  /// Runs one function of a hook, named and timed. A failure of an optional hook is a warning.
  Result<void> run(const StepHook& hook, const std::function<Result<void>()>& function);

  HookContext context_;
  Log* log_;
  std::vector<ShellHook> shell_hooks_;
  std::vector<std::unique_ptr<StepHook>> hooks_;
  std::vector<std::string> off_;  ///< built-in hooks
  HookEdits said_;
  std::vector<std::pair<std::string, std::string>> origins_;
  std::map<std::string, std::uint64_t> durations_;
  bool prepares_ = false;  ///< this process's times are in the edits that it wrote
};

}  // namespace spc
