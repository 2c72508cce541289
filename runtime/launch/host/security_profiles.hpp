#pragma once

#include <string>

#include "base/result.hpp"
#include "launch/inside/task_security.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// The site's profile of system calls and the job's, read on the host as the user, and made into
/// programs for the tasks; and the site's labels, where the node has the security module.
/// `remapped`: the tasks have the capabilities of a user namespace of their own. Empty if neither
/// has any.
Result<TaskSecurity> read_security(const LaunchRequest& request, const SitePolicy& site,
                                   bool remapped);

}  // namespace spc
