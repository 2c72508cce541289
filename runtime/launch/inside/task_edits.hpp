#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hook_engine/step_hook.hpp"

namespace spc {

/// What the hooks' edits come to for each task of the node, besides what is in the container by then: records `key=value\0`.
struct TaskEdits {
  std::vector<std::pair<std::string, Edits>> of_hooks;  ///< environment, limits, notes and warnings only
  std::vector<std::string> off;                         ///< names of built-in hooks that others have replaced
  std::map<std::string, std::uint64_t> took;            ///< by each hook until then, in microseconds

  [[nodiscard]] std::string serialize() const;
  static TaskEdits parse(std::string_view records);
};

}  // namespace spc
