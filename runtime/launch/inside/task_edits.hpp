#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hook_engine/step_hook.hpp"

namespace spc {

/// The hooks' edits for each task of the node, besides those already applied to the container:
/// records `key=value\0`.
struct TaskEdits {
  std::vector<std::pair<std::string, Edits>>
      of_hooks;                               ///< environment, limits, notes and warnings only
  std::vector<std::string> off;               ///< built-in hooks that were replaced
  std::map<std::string, std::uint64_t> took;  ///< per hook so far, in microseconds

  [[nodiscard]] std::string serialize() const;
  static TaskEdits parse(std::string_view records);
};

}  // namespace spc
