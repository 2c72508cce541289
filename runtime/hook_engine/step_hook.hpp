#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook_engine/hook_directory.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// A hook of any kind in a step. The functions are those of `Hook`, and may do nothing.
class StepHook {
 public:
  explicit StepHook(std::string name) : name_(std::move(name)) {}
  virtual ~StepHook() = default;
  StepHook(const StepHook&) = delete;
  StepHook& operator=(const StepHook&) = delete;

  /// The stem of its file name, or the built-in's name.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// "built in", or the file; for --container-explain.
  [[nodiscard]] virtual std::string from() const = 0;
  [[nodiscard]] virtual bool wanted(const HookContext&) const { return true; }
  /// Whether a failure is a warning, and the hook then has no edits.
  [[nodiscard]] virtual bool optional() const { return false; }
  virtual Result<Edits> prepare(const HookContext&, Log&) { return Edits(); }
  /// The part of `create` that needs the host and runs before the container is entered.
  virtual Result<void> create_on_host(const HookContext&, const Edits&, Log&) { return {}; }
  virtual Result<void> create(const HookContext&, Edits&) { return {}; }
  /// The same for `task`.
  virtual Result<void> task_on_host(const HookContext&, Log&) { return {}; }
  virtual Result<Edits> task(const HookContext&) { return Edits(); }
  /// In the container, once per node, after all mounts and before any task enters.
  virtual Result<void> start(const HookContext&, Log&) { return {}; }
  /// On the host, once per node, when all tasks have ended, in a separate process.
  [[nodiscard]] virtual bool has_stop() const { return false; }
  /// Whether task_on_host() has something to do.
  [[nodiscard]] virtual bool asks_host() const { return false; }
  virtual Result<void> stop(const HookContext&, Log&) { return {}; }

 private:
  std::string name_;
};

/// The hooks of a step in execution order, by name.
class StepHooks {
 public:
  /// Built-in and site hooks, without those that are replaced by a hook of the same name or
  /// disabled (hooks_off in config.toml). On the host. `log` must outlive it: site hooks write to
  /// the user. `replaced`: built-in hooks replaced by enroot shell hooks, which run elsewhere, and
  /// their files.
  using Replaced = std::map<std::string, std::string>;
  static Result<StepHooks> find(const HookContext& context, Log& log,
                                const Replaced& replaced = {});
  /// The same from another directory.
  static Result<StepHooks> find_in(const std::string& directory, const HookContext& context,
                                   Log& log, const Replaced& replaced = {});

  struct Outcome {
    std::string hook;
    Edits edits;
  };
  /// For a task that is in the container, where there are no files of the site: the built-in hooks
  /// but those in `off`, and what the site's hooks have `said` on the host for this task.
  static StepHooks inside(const HookContext& context, Log& log, const std::vector<std::string>& off,
                          const std::vector<Outcome>& said);

  /// Runs one stage of all hooks that take part; stops at the first error, which names its hook. A
  /// refusal is an error.
  Result<std::vector<Outcome>> prepare(const HookContext& context);
  /// Before the container is entered, and after `prepare` if that runs.
  Result<void> create_on_host(const HookContext& context, const std::vector<Outcome>& prepared);
  Result<void> create(const HookContext& context, std::vector<Outcome>& prepared);
  /// In each task, before the container is entered.
  Result<void> task_on_host(const HookContext& context);
  Result<std::vector<Outcome>> task(const HookContext& context);
  /// Whether each task needs task_on_host(), and what hooks of the site then say for it.
  [[nodiscard]] bool asks_host(const HookContext& context) const;
  Result<std::vector<Outcome>> said_on_host(const HookContext& context);
  /// Names of the built-in hooks that are not among these.
  [[nodiscard]] std::vector<std::string> built_in_off() const;
  Result<void> start(const HookContext& context);
  /// Whether any hook takes part in `stop`.
  [[nodiscard]] bool has_stop(const HookContext& context) const;
  /// Runs all of them, whatever happens to each: failures go to `log`.
  void stop(const HookContext& context, Log& log) const;

  /// Each hook with its origin and what it replaces, and the disabled ones, in order: for
  /// --container-explain.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& origins() const {
    return origins_;
  }
  /// Time of each hook in this process so far, in microseconds.
  [[nodiscard]] const std::map<std::string, std::uint64_t>& durations() const { return durations_; }

 private:
  explicit StepHooks(Log& log) : log_(&log) {}
  void sort();
  Result<std::vector<Outcome>> task(const HookContext& context,
                                    const std::function<bool(const StepHook&)>& which);
  void add_builtins(const HookContext& context, const std::vector<HookFile>& files,
                    const Replaced& replaced);
  Result<void> add_files(const HookContext& context, const std::vector<HookFile>& files,
                         uid_t owner);
  /// Runs one function of a hook, named and timed; returns `otherwise` on failure if it is
  /// optional.
  template <typename T>
  Result<T> run(const StepHook& hook, T otherwise, const std::function<Result<T>()>& function);
  Result<void> run(const StepHook& hook, const std::function<Result<void>()>& function);

  Log* log_;
  std::vector<std::unique_ptr<StepHook>> hooks_;
  std::vector<std::pair<std::string, std::string>> origins_;
  std::map<std::string, std::uint64_t> durations_;
};

}  // namespace spc
