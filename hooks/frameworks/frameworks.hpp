#pragma once

#include <cstdint>

#include "hooks/hook.hpp"

namespace spc {

/// MASTER_ADDR, RANK and their like for the tasks of a step (`frameworks` in config.toml).
extern const Hook frameworks_hook;

/// Where the ranks of a step meet. Step 0 has the port that enroot's hook gives the job; no two steps of a job share one (as long
/// as they are fewer than 4536). All are above the ports that the kernel hands out unless a site has changed these.
std::uint16_t master_port(std::uint32_t job, std::uint32_t step);

}  // namespace spc
