#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// When a site hook runs: `when` of oci-hooks(5), and the job's environment. All conditions must
/// hold.
struct HookConditions {
  std::optional<bool> always;
  std::map<std::string, std::string>
      annotations;  ///< for each pair, one annotation matches both; extended regular expressions
  std::vector<std::string> commands;  ///< one of them matches the first word of the task's command
  std::optional<bool> has_bind_mounts;
  std::map<std::string, std::string>
      environment;  ///< each of these job variables is set, and its value matches

  /// Whether there are any conditions.
  [[nodiscard]] bool empty() const;
  /// An error names the invalid expression.
  [[nodiscard]] Result<void> check() const;
  [[nodiscard]] bool hold(const HookContext& context) const;
};

/// The annotations of a container, as far as known at its start.
std::map<std::string, std::string> annotations_of(const HookContext& context);

}  // namespace spc
