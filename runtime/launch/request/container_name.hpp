#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// --container-name: NAME[:auto|create|exec|no_exec|replace]. A name that reads JOB.STEP (STEP may be `batch` or
/// `interactive`) means that step's container as long as it runs.
struct ContainerName {
  enum class Use { automatic, create, exec, no_exec, replace };

  std::string text;
  Use use = Use::automatic;

  static Result<ContainerName> parse(std::string_view text);

  /// What the agent is told instead of the name. Made by a short hash: two names that meet are the same user's, and the
  /// notes of the container then say the other one.
  [[nodiscard]] Digest key() const;
  /// The same for the running step that the name stands for, if it has that form.
  [[nodiscard]] std::optional<Digest> step_key() const;
};

}  // namespace spc
