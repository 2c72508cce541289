#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace spc::verify {

/// From here on, this process can only read descriptor `layer`, write its reason to descriptor 2,
/// allocate memory and exit. `size` of the layer bounds the CPU time.
Result<void> confine(int layer, std::uint64_t size);

}  // namespace spc::verify
