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

/// A hook of any kind as a step meets it. The functions are those of `Hook`, and may do nothing.
class StepHook {
 public:
  explicit StepHook(std::string name) : name_(std::move(name)) {}
  virtual ~StepHook() = default;
  StepHook(const StepHook&) = delete;
  StepHook& operator=(const StepHook&) = delete;

  /// The stem of its file's name, or the built-in's name.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// "built in", or the file; for --container-explain.
  [[nodiscard]] virtual std::string from() const = 0;
  [[nodiscard]] virtual bool wanted(const HookContext&) const { return true; }
  /// Whether a failure is a warning, and the hook then has said nothing.
  [[nodiscard]] virtual bool optional() const { return false; }
  virtual Result<Edits> prepare(const HookContext&, Log&) { return Edits(); }
  /// What `create` of a process that needs the host has to do before the container is entered.
  virtual Result<void> create_on_host(const HookContext&, const Edits&, Log&) { return {}; }
  virtual Result<void> create(const HookContext&, Edits&) { return {}; }
  /// The same for `task`.
  virtual Result<void> task_on_host(const HookContext&, Log&) { return {}; }
  virtual Result<Edits> task(const HookContext&) { return Edits(); }
  /// Inside, once a node, when everything is mounted and before any task is let in.
  virtual Result<void> start(const HookContext&, Log&) { return {}; }
  /// On the host, once a node, when all tasks have ended, in another process than the rest.
  [[nodiscard]] virtual bool has_stop() const { return false; }
  virtual Result<void> stop(const HookContext&, Log&) { return {}; }

 private:
  std::string name_;
};

/// The hooks of a step in the order in which they run, by their names.
class StepHooks {
 public:
  /// Those that are built in and of the site, without the ones that are replaced by another kind of the same name or turned off
  /// (hooks_off in config.toml). On the host. `log` must outlive it: hooks of the site speak to the user.
  /// `replaced`: built-in hooks that scripts of enroot's kind stand for, which run elsewhere, and their files.
  using Replaced = std::map<std::string, std::string>;
  static Result<StepHooks> find(const HookContext& context, Log& log, const Replaced& replaced = {});
  /// The same from another directory.
  static Result<StepHooks> find_in(const std::string& directory, const HookContext& context, Log& log,
                                   const Replaced& replaced = {});

  struct Outcome {
    std::string hook;
    Edits edits;
  };
  /// Runs one stage of all that want to; the first error, under its hook's name, ends it. A refusal is an error.
  Result<std::vector<Outcome>> prepare(const HookContext& context);
  /// Before the container is entered, and after `prepare` where that runs.
  Result<void> create_on_host(const HookContext& context, const std::vector<Outcome>& prepared);
  Result<void> create(const HookContext& context, std::vector<Outcome>& prepared);
  /// In each task, before the container is entered.
  Result<void> task_on_host(const HookContext& context);
  Result<std::vector<Outcome>> task(const HookContext& context);
  Result<void> start(const HookContext& context);
  /// Whether there is anything for `stop` to do.
  [[nodiscard]] bool has_stop(const HookContext& context) const;
  /// All of them, whatever becomes of each: failures are told to `log`.
  void stop(const HookContext& context, Log& log) const;

  /// Each hook, where it comes from and what it replaces, and which are off: for --container-explain, in their order.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& origins() const { return origins_; }
  /// How long each has taken so far in this process, in microseconds.
  [[nodiscard]] const std::map<std::string, std::uint64_t>& durations() const { return durations_; }

 private:
  explicit StepHooks(Log& log) : log_(&log) {}
  void add_builtins(const HookContext& context, const std::vector<HookFile>& files, const Replaced& replaced);
  Result<void> add_files(const HookContext& context, const std::vector<HookFile>& files, uid_t owner);
  /// Runs one function of a hook under its name and on its time; `otherwise` if it fails and may.
  template <typename T>
  Result<T> run(const StepHook& hook, T otherwise, const std::function<Result<T>()>& function);
  Result<void> run(const StepHook& hook, const std::function<Result<void>()>& function);

  Log* log_;
  std::vector<std::unique_ptr<StepHook>> hooks_;
  std::vector<std::pair<std::string, std::string>> origins_;
  std::map<std::string, std::uint64_t> durations_;
};

}  // namespace spc
