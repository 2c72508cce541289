#pragma once

#include <sched.h>

#include <algorithm>
#include <compare>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

// --- kernel ---

struct KernelVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};

/// Returns 6.1 for "6.1.0-28-amd64"; 0.0 if the text does not begin with two numbers.
KernelVersion kernel_version(std::string_view release);
KernelVersion running_kernel();

/// First versions that map the owners of a squashfs and of an erofs.
inline constexpr KernelVersion kMapsSquashfs{6, 2};
inline constexpr KernelVersion kMapsErofs{5, 19};

/// Returns an Error that names the kernel if containers cannot be started with it: mount_setattr(2)
/// is missing, as before Linux 5.12.
Result<void> check_kernel();

// --- processors ---

/// Returns the number of processors that this process may use, by its affinity and its cpuset; at
/// least 1.
inline unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0
             ? static_cast<unsigned>(std::max(CPU_COUNT(&set), 1))
             : 1;
}

/// Restricts this thread, and processes and threads that it starts from now on, to `most`
/// processors. 0: all.
inline void use_processors(unsigned most) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (most == 0 || ::sched_getaffinity(0, sizeof set, &set) != 0) return;
  for (std::size_t number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &set)) continue;
    if (most == 0) CPU_CLR(number, &set);
    most -= most > 0 ? 1 : 0;
  }
  (void)::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace spc
