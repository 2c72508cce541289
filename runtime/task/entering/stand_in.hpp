#pragma once

#include "base/result.hpp"

namespace spc {

/// For a process that has joined a PID namespace, which only its children enter: forks, and returns
/// in the child, which continues as the task. The process itself, whose PID Slurm knows, stays as
/// its stand-in: it holds no descriptor, passes on signals, and exits as the child does. If one is
/// killed, so is the other.
Result<void> leave_stand_in();

}  // namespace spc
