#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
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
  virtual Result<Edits> prepare(const HookContext&) { return Edits(); }
  virtual Result<void> create(const HookContext&, Edits&) { return {}; }
  virtual Result<Edits> task(const HookContext&) { return Edits(); }

 private:
  std::string name_;
};

/// The hooks of a step in the order in which they run, by their names.
class StepHooks {
 public:
  /// Those that are built in, of the site and, where it allows them, of the user, without the ones that are replaced by another
  /// kind of the same name or turned off (hooks_off in config.toml).
  static Result<StepHooks> find(const HookContext& context);

  struct Outcome {
    std::string hook;
    Edits edits;
  };
  /// Runs one stage of all that want to; the first error, under its hook's name, ends it. A refusal is an error.
  Result<std::vector<Outcome>> prepare(const HookContext& context);
  Result<void> create(const HookContext& context, std::vector<Outcome>& prepared);
  Result<std::vector<Outcome>> task(const HookContext& context);

 private:
  std::vector<std::unique_ptr<StepHook>> hooks_;
};

}  // namespace spc
