#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// Properties that a container takes over from the node, with the names of enroot's hooks.
extern const Hook localtime_hook;
extern const Hook aptfix_hook;
/// Entries of passwd and group for the user. The root file system set-up writes them, since it
/// knows the user; this hook reports and disables them.
extern const Hook shadow_hook;

}  // namespace spc
