#pragma once

#include "base/result.hpp"

namespace spc {

/// For a process that has joined a pid namespace, into which only its children get: forks, and returns in the child, which
/// goes on as the task. The process itself, whose number Slurm knows, stays as its stand-in: holds no descriptor, passes on
/// the signals that processes send, and ends as the child ends. Either is killed when the other one is.
Result<void> leave_stand_in();

}  // namespace spc
