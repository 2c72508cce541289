#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// What a container takes over from the node besides its mounts, under the names that enroot's hooks have.
extern const Hook localtime_hook;
extern const Hook aptfix_hook;
/// Lines of passwd and group for the user and his groups. furnish() writes them, which knows him; this is where that is told and
/// turned off.
extern const Hook shadow_hook;

}  // namespace spc
