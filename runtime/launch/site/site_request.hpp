#pragma once

#include "base/result.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "protocol/policy.hpp"

namespace spc {

/// The request completed by the site: its mounts precede the user's, its defaults apply to unset
/// options. Refused if the site does not allow an option in use.
Result<LaunchRequest> fit_to_site(LaunchRequest request, const PolicyRecord& policy,
                                  const SitePolicy& site);

}  // namespace spc
