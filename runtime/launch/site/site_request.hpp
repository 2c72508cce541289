#pragma once

#include "base/result.hpp"
#include "launch/policy/site.hpp"
#include "launch/request/launch_request.hpp"
#include "protocol/policy.hpp"

namespace spc {

/// The request as the site completes it: its mounts come before the user's, its defaults take the place of what was not said.
/// Refused if the site does not allow an option that is used.
Result<LaunchRequest> fit_to_site(LaunchRequest request, const PolicyRecord& policy, const Site& site);

}  // namespace spc
