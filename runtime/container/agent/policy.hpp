#pragma once

#include "base/policy_record.hpp"
#include "base/result.hpp"

namespace spc {

/// The site's policy: the kept record when config.toml has not changed since it was made, else a new one, parsed by
/// `import policy` as the service user. A config.toml with a mistake is an Error that names it.
Result<PolicyRecord> current_policy(uid_t service_uid, gid_t service_gid);

/// Size of the writable layer in tmpfs syntax.
std::string upper_size(const PolicyRecord& policy);

}  // namespace spc
