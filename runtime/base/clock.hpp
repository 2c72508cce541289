#pragma once

#include <cstdint>
#include <ctime>

namespace spc {

/// Microseconds of a clock that never jumps; for differences only.
inline std::uint64_t now_us() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(time.tv_nsec) / 1000;
}

}  // namespace spc
