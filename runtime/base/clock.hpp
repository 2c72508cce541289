#pragma once

#include <chrono>
#include <cstdint>

namespace spc {

/// Returns the microseconds of the monotonic clock. Only differences have a meaning.
inline std::uint64_t now_us() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::microseconds(1));
}

}  // namespace spc
