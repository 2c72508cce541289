#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// The variables, NAME=VALUE, that a process was executed with: proc(5), /proc/PID/environ. Of one
/// that is in the middle of execve it waits for the new ones, 5 s at most: until they are in place
/// the file is empty. 4 MiB at most.
Result<std::vector<std::string>> environment_of_process(pid_t process);

}  // namespace spc
