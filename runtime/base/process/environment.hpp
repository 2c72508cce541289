#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Returns the variables, NAME=VALUE, that a process was executed with: proc(5), /proc/PID/environ.
/// During an execve the file is empty until the new variables are in place; waits up to 5 s for
/// them. 4 MiB at most.
Result<std::vector<std::string>> environment_of_process(pid_t process);

}  // namespace spc
