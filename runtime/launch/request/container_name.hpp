#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// --container-name: NAME[:auto|create|exec|no_exec|replace|remove]. A name of the form JOB.STEP
/// (STEP may be `batch` or `interactive`) means that step's container while it runs.
struct ContainerName {
  enum class Use { automatic, create, exec, no_exec, replace, remove };

  std::string text;
  Use use = Use::automatic;

  static Result<ContainerName> parse(std::string_view text);

  /// The agent gets this instead of the name: a short hash. Two names that collide are the same
  /// user's, and the container's notes then have the other one.
  [[nodiscard]] Digest key() const;
  /// The same for the running step that the name refers to, if it has that form.
  [[nodiscard]] std::optional<Digest> step_key() const;
};

}  // namespace spc
