#pragma once

#include <string>

#include "hooks/cdi/registry.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// In Edits::remembered: the version of the node's NVIDIA driver, if CUDA libraries in the image may replace its own
/// (enable-cuda-compat).
inline constexpr char kCdiDriverVersion[] = "driver version";

/// Injects these devices into a step, on the host, as the user: device nodes, mounts, variables, and the effects of their
/// hooks. Refuses what cannot be done or would expose more than a device: mounts of or over `/`, file system types other than
/// tmpfs, network interfaces, programs.
Result<Edits> edits_for(const HookContext& context, const std::vector<CdiEntry>& devices);

}  // namespace spc
