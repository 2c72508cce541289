#pragma once

#include "hooks/hook.hpp"

namespace spc {

extern const Hook gpu_hook;     ///< 97-gpu: refuses --container-gpu without a GPU
extern const Hook nvidia_hook;  ///< 98-nvidia
extern const Hook amd_hook;     ///< 98-amd
extern const Hook intel_hook;   ///< 98-intel

}  // namespace spc
