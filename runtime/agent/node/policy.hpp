#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/policy.hpp"

namespace spc::agent {

/// The site's policy: the kept one when config.toml and config.d have not changed since it was made, else a new one, parsed
/// by `import policy` as the service user. A file with a mistake is an Error that names it. Gives back the file in which it is
/// kept, with the texts behind it, which the agent does not read.
Result<UniqueFd> current_policy(uid_t service_uid, gid_t service_gid, PolicyRecord& policy);

/// Size of the writable layer in tmpfs syntax.
std::string upper_size(const PolicyRecord& policy);

}  // namespace spc::agent
