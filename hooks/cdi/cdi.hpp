#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 60-cdi.
extern const Hook cdi_hook;

/// Whether the GPUs of this step, if any, are injected from a CDI file of kind nvidia.com/gpu, so
/// that 98-nvidia must not: if config.toml says so (prefer_cdi) and there is one with a device that
/// the step may open, or if the user names devices of this kind.
bool cdi_serves_gpus(const HookContext& context);

}  // namespace spc
