#pragma once

#include "launch/launch.hpp"

namespace spc {

/// What the other tasks are told after Led::removed, as an error.
inline constexpr char kRemoved[] = "the container was removed";
inline bool removes(const LaunchRequest& request) {
  return request.name && request.name->use == ContainerName::Use::remove;
}

/// In the leader's process, a copy of the task without privilege: reads what the user, the site and
/// the image say, sets the container up, and tells task and agent how it has ended. Returns its
/// exit status.
int lead(const TaskCall& call, const LeaderStart& start);

}  // namespace spc
