#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// When a hook of the site takes part: `when` of oci-hooks(5), and the job's environment besides. All that are given must hold.
struct HookConditions {
  std::optional<bool> always;
  std::map<std::string, std::string> annotations;  ///< for each pair, one annotation matches both; extended regular expressions
  std::vector<std::string> commands;               ///< one of them matches the first word of the task's command
  std::optional<bool> has_bind_mounts;
  std::map<std::string, std::string> environment;  ///< each of these variables of the job is set, and its value matches

  /// Whether anything is said at all.
  [[nodiscard]] bool empty() const;
  /// An error names the expression that is none.
  [[nodiscard]] Result<void> check() const;
  [[nodiscard]] bool hold(const HookContext& context) const;
};

/// What stands for the annotations of a container: what is known of it when it is started.
std::map<std::string, std::string> annotations_of(const HookContext& context);

}  // namespace spc
