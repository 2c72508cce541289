#pragma once

#include <sched.h>

#include <algorithm>

namespace spc {

/// How many processors this process may use, by its affinity and its cpuset; at least 1.
inline unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0
             ? static_cast<unsigned>(std::max(CPU_COUNT(&set), 1))
             : 1;
}

/// Leaves `most` of them to this thread, and to what it starts from now on. 0: all.
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
