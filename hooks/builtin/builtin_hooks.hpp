#pragma once

#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// Returns the built-in hooks, in execution order.
const std::vector<const Hook*>& builtin_hooks();

}  // namespace spc
