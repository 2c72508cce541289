#pragma once

#include <sys/types.h>

#include "base/result.hpp"

namespace spc::agent {

/// Creates the store and the run directory with the owners and modes listed in ARCHITECTURE.md;
/// idempotent. Called when slurmd starts, as root.
Result<void> set_up_node(uid_t service_uid, gid_t service_gid);

}  // namespace spc::agent
