#pragma once

#include "base/result.hpp"

namespace spc::verify {

/// From here on this process can read descriptor `layer`, write its reason to descriptor 2, get memory and end. `size` of
/// the layer: it bounds the CPU time.
Result<void> confine(int layer, std::uint64_t size);

}  // namespace spc::verify
