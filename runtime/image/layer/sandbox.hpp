#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace spc {

/// From here on, all threads of this process can only compute, use their open descriptors and exit: a layer that takes over
/// the process cannot open, connect, start or signal anything. Any other system call kills the whole process. Existing
/// threads are included; create them before. `largest_file`: maximum size of a file.
Result<void> enter_sandbox(std::uint64_t largest_file);

}  // namespace spc
