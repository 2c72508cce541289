#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "hook_engine/hook_description.hpp"
#include "hook_engine/step_hook.hpp"

namespace spc {

/// The program of an OCI runtime hook.
struct OciProgram {
  std::string path;
  std::vector<std::string> args;  ///< argv; empty: the path
  std::vector<std::string> env;   ///< in addition to that of all hooks: NAME=VALUE
  std::chrono::seconds limit{30};
};

/// Runs it as the user, with the container state on standard input and a bundle (a directory with
/// config.json) that is removed afterwards. `status`: creating, created, running or stopped.
/// `root`: path of the container's root.
Result<void> run_oci_hook(const std::string& hook, const OciProgram& program,
                          std::string_view status, const std::string& root,
                          const HookContext& context, Log& log);

/// A file in the format of oci-hooks(5) as a step hook. prestart, createRuntime and createContainer
/// run on the host before the container is entered, startContainer in the container, poststop on
/// the host when all tasks have ended.
class OciHook final : public StepHook {
 public:
  /// The program and all directories above it must be owned by root, except for startContainer,
  /// where it is the container's.
  static Result<std::unique_ptr<StepHook>> make(const HookFile& file, HookDescription description,
                                                uid_t owner);

  [[nodiscard]] std::string from() const override { return file_; }
  [[nodiscard]] bool wanted(const HookContext& context) const override {
    return description_.when.hold(context);
  }
  [[nodiscard]] bool optional() const override { return description_.optional; }
  Result<void> create_on_host(const HookContext& context, const Edits& prepared, Log& log) override;
  Result<void> start(const HookContext& context, Log& log) override;
  [[nodiscard]] bool has_stop() const override;
  Result<void> stop(const HookContext& context, Log& log) override;

  OciHook(std::string name, std::string file, HookDescription description)
      : StepHook(std::move(name)), file_(std::move(file)), description_(std::move(description)) {}

 private:
  [[nodiscard]] bool has_stage(std::string_view stage) const;
  Result<void> run(std::string_view status, const std::string& root, const HookContext& context,
                   Log& log) const;

  std::string file_;
  HookDescription description_;
};

}  // namespace spc
