#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc::tool {

/// Exit statuses as in podman; all others are the command's own.
inline constexpr int kNoContainer = 125;    ///< the container could not be set up
inline constexpr int kCannotExecute = 126;  ///< the command cannot be executed
inline constexpr int kNoCommand = 127;      ///< command not found

/// Runs `child` in a separate process, passes on signals, and returns its exit status, or 128 plus
/// the number of the signal that killed it. The child is killed with us. `started` receives its
/// PID.
Result<int> supervise(const std::function<int()>& child, const std::function<void(pid_t)>& started);

/// Executes the first of `alternatives` that exists, each a command with its arguments, searched in
/// PATH of `environment`. Returns only on failure, with an exit status, after reporting the reason;
/// `image` is for that.
int execute(const std::vector<std::vector<std::string>>& alternatives,
            const std::map<std::string, std::string>& environment, std::string_view image);

}  // namespace spc::tool
