#pragma once

#include <sys/types.h>

#include "base/result.hpp"

namespace spc::agent {

/// Makes the store and the run directory with the owners and modes that ARCHITECTURE.md lists; repeats safely.
/// Called when slurmd starts, as root.
Result<void> set_up_node(uid_t service_uid, gid_t service_gid);

}  // namespace spc::agent
