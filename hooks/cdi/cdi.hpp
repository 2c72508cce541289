#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 60-cdi.
extern const Hook cdi_hook;

/// Whether the GPUs of this step, if it has any, come by a CDI file of kind nvidia.com/gpu, so that nothing else need bring
/// them: config.toml says so (prefer_cdi) and there is one with a device that the step may open, or the user names devices of
/// this kind.
bool cdi_serves_gpus(const HookContext& context);

}  // namespace spc
