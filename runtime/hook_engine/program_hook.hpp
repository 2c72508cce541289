#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "hook_engine/hook_description.hpp"
#include "hook_engine/hook_directory.hpp"
#include "hook_engine/hook_process.hpp"
#include "hook_engine/step_hook.hpp"

namespace spc {

/// A site program that reads a context as JSON and prints edits as JSON. It runs on the host in
/// every stage but `start`: for `create` and `task` it runs before the container is entered.
class ProgramHook final : public StepHook {
 public:
  /// `description`: the file NAME.json beside it, if any.
  static Result<std::unique_ptr<StepHook>> make(const HookFile& file, HookDescription description,
                                                uid_t owner);

  [[nodiscard]] std::string from() const override { return path_; }
  [[nodiscard]] bool wanted(const HookContext& context) const override {
    return description_.when.hold(context);
  }
  [[nodiscard]] bool optional() const override { return description_.optional; }
  Result<Edits> prepare(const HookContext& context, Log& log) override;
  Result<void> create_on_host(const HookContext& context, const Edits& prepared, Log& log) override;
  Result<void> create(const HookContext& context, Edits& edits) override;
  Result<void> task_on_host(const HookContext& context, Log& log) override;
  Result<Edits> task(const HookContext& context) override;
  Result<void> start(const HookContext& context, Log& log) override;
  [[nodiscard]] bool has_stop() const override { return has_stage("stop"); }
  [[nodiscard]] bool asks_host() const override { return has_stage("task"); }
  Result<void> stop(const HookContext& context, Log& log) override;

  ProgramHook(std::string name, std::string path, HookDescription description)
      : StepHook(std::move(name)), path_(std::move(path)), description_(std::move(description)) {}

 private:
  [[nodiscard]] bool has_stage(std::string_view stage) const;
  [[nodiscard]] HookProcess process_for(const HookContext& context, const std::string& stage,
                                        const Edits& prepared) const;
  Result<Edits> ask(const HookContext& context, const std::string& stage, const Edits& prepared,
                    Log& log);

  std::string path_;
  HookDescription description_;
  UniqueFd file_;  ///< for `start`, which cannot see the host
  std::optional<Edits> created_;
  Edits of_task_;
};

}  // namespace spc
