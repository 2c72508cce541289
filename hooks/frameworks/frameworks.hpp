#pragma once

#include <cstdint>

#include "hooks/hook.hpp"

namespace spc {

/// MASTER_ADDR, RANK and so on for the tasks of a step (`frameworks` in config.toml).
extern const Hook frameworks_hook;

/// The rendezvous port of a step. Step 0 has the port that enroot's hook gives the job; no two
/// steps of a job share one (up to 4536 steps). All are above the kernel's default range of
/// ephemeral ports.
std::uint16_t master_port(std::uint32_t job, std::uint32_t step);

}  // namespace spc
