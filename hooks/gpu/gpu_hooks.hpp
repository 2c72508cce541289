#pragma once

#include "hooks/hook.hpp"

namespace spc {

extern const Hook gpu_hook;     ///< 97-gpu: --container-gpu where there are none is refused
extern const Hook nvidia_hook;  ///< 98-nvidia
extern const Hook amd_hook;     ///< 98-amd
extern const Hook intel_hook;   ///< 98-intel

}  // namespace spc
