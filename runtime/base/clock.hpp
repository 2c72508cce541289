#pragma once

#include <chrono>
#include <cstdint>

namespace spc {

/// Microseconds of a clock that never jumps; for differences only.
inline std::uint64_t now_us() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::microseconds(1));
}

}  // namespace spc
