#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/policy.hpp"

namespace spc::agent {

/// The site's policy: the cached one if config.toml and config.d are unchanged, otherwise a new
/// one, parsed by `import policy` as the service user. An invalid file is an Error that names it.
/// Returns the cache file, with the texts after the record, which the agent does not read.
Result<UniqueFd> current_policy(uid_t service_uid, gid_t service_gid, PolicyRecord& policy);

}  // namespace spc::agent
