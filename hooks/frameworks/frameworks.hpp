#pragma once

#include <cstdint>
#include <string>

#include "hooks/hook.hpp"

namespace spc {

// --- python user base ---

/// `pip install --user` into a directory for the image (`python_user_base` in config.toml).
extern const Hook python_user_base_hook;

/// Returns the name of that directory: the start of the manifest digest or, for an image file or
/// directory, of a number derived from its path.
std::string python_base_name(const std::string& image_digest, const std::string& image_name);

// --- frameworks ---

/// MASTER_ADDR, RANK and so on for the tasks of a step (`frameworks` in config.toml).
extern const Hook frameworks_hook;

/// Returns the rendezvous port of a step. Step 0 has the port that enroot's hook assigns to the
/// job. No two steps of a job share one (up to 4536 steps). All are above the kernel's default
/// range of ephemeral ports.
std::uint16_t master_port(std::uint32_t job, std::uint32_t step);

}  // namespace spc
