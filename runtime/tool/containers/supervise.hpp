#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Exit statuses of what runs a command, as podman has them; every other is the command's own.
inline constexpr int kNoContainer = 125;    ///< the container could not be made
inline constexpr int kCannotExecute = 126;  ///< the command cannot be executed
inline constexpr int kNoCommand = 127;      ///< there is no such command

/// Runs `child` in a process of its own, passes signals on to it, and returns its exit status, 128 and the number of the
/// signal that killed it. The child ends when we are killed. `started` is told its process id.
Result<int> supervise(const std::function<int()>& child, const std::function<void(pid_t)>& started);

/// Executes the first of `alternatives` that exists, each a command with its arguments, looked up along PATH of
/// `environment`. Comes back only with an exit status, having said why.
int execute(const std::vector<std::vector<std::string>>& alternatives, const std::map<std::string, std::string>& environment);

}  // namespace spc
