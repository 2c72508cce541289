#pragma once

#include "launch/policy/site_policy.hpp"

namespace spc {
using Site = SitePolicy;
}  // namespace spc
