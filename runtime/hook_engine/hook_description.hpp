#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "hook_engine/hook_conditions.hpp"

namespace spc {

/// A file NAME.json in a directory of hooks, in the form of oci-hooks(5), version 1.0.0. With `hook.path` it is a hook of OCI
/// runtimes; without, it says more about the program NAME beside it.
struct HookDescription {
  std::string path;               ///< of an OCI hook's program
  std::vector<std::string> args;  ///< argv; empty: the program's path
  std::vector<std::string> env;   ///< NAME=VALUE
  std::optional<std::chrono::seconds> timeout;
  HookConditions when;
  std::vector<std::string> stages;
  bool optional = false;  ///< ours: that it fails is a warning

  /// Strict, as for edits: a key that is not known is refused and named.
  static Result<HookDescription> parse(std::string_view text);
  /// The same of a file that nobody but root (or `owner`) can have written.
  static Result<HookDescription> read(const std::string& path, uid_t owner);
};

}  // namespace spc
