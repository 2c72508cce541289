#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace spc {

/// From here on, all threads of this process can only compute, use their open descriptors and exit
/// (base/process/sandbox.hpp). `largest_file`: maximum size of a file. The limits of memory and
/// processor time are the second line behind Budget.
Result<void> enter_layer_sandbox(std::uint64_t largest_file, std::uint64_t memory,
                                 std::uint64_t cpu_seconds);

}  // namespace spc
