#pragma once

#include <vector>

#include "base/result.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/mount_spec.hpp"

namespace spc {

/// Whether to include the mounts the user configured for enroot.
enum class UsersMounts { yes, no };

/// The mounts of every container: those of enroot's mounts.d, the system's before the user's, then
/// those of config.toml. An Error names the file.
Result<std::vector<MountSpec>> site_mounts(const SitePolicy& site, UsersMounts users);

}  // namespace spc
