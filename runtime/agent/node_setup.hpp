#pragma once

#include <sys/types.h>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/policy.hpp"

namespace spc::agent {

// --- policy ---

/// Returns the site's policy: the cached one if config.toml and config.d are unchanged, otherwise a
/// new one, which `import policy` parses as the service user. An invalid file is an Error that
/// names it. A file that `import` does not parse within ten seconds is an Error as well. Returns
/// the cache file, with the texts after the record, which the agent does not read.
Result<UniqueFd> current_policy(uid_t service_uid, gid_t service_gid, PolicyRecord& policy);

// --- setup ---

/// Creates the store and the run directory with the owners and modes listed in ARCHITECTURE.md;
/// idempotent. Called when slurmd starts, as root.
Result<void> set_up_node(uid_t service_uid, gid_t service_gid);

}  // namespace spc::agent
