#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace spc {

/// From here on all threads of this process can compute, use the descriptors they have and end: a layer that takes the
/// process over can open, connect, start and signal nothing. Any other system call kills the whole process. Threads
/// must exist before; they are included. `largest_file`: no file grows further.
Result<void> enter_sandbox(std::uint64_t largest_file);

}  // namespace spc
