#pragma once

#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// The built-in hooks, in the order in which they run.
const std::vector<const Hook*>& builtin_hooks();

}  // namespace spc
