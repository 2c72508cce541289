#pragma once

#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// The built-in hooks, in execution order.
const std::vector<const Hook*>& builtin_hooks();

}  // namespace spc
