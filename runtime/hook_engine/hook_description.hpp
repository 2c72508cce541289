#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "hook_engine/hook_conditions.hpp"

namespace spc {

/// A file NAME.json in a hook directory, in the format of oci-hooks(5), version 1.0.0. With
/// `hook.path` it is an OCI runtime hook; without, it describes the program NAME beside it.
struct HookDescription {
  std::string path;               ///< of an OCI hook's program
  std::vector<std::string> args;  ///< argv; empty: the program's path
  std::vector<std::string> env;   ///< NAME=VALUE
  std::optional<std::chrono::seconds> timeout;
  HookConditions when;
  std::vector<std::string> stages;
  bool optional = false;  ///< extension: a failure is a warning

  /// Strict, like edits: unknown keys are refused by name.
  static Result<HookDescription> parse(std::string_view text);
  /// The same for a file that only root (or `owner`) can have written.
  static Result<HookDescription> read(const std::string& path, uid_t owner);
};

}  // namespace spc
