#pragma once

#include <string>

#include "hooks/cdi/registry.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// In Edits::remembered: the version of NVIDIA's driver on the node, if CUDA libraries of the image may take the place of its own
/// (enable-cuda-compat).
inline constexpr char kCdiDriverVersion[] = "driver version";

/// What these devices are to a step, on the host, as the user: device nodes, mounts, variables, and what their hooks are for.
/// Refused is what cannot be done, or would show more than a device: mounts of or over `/`, file systems of other types than
/// tmpfs, network interfaces, programs that are executed.
Result<Edits> edits_for(const HookContext& context, const std::vector<CdiEntry>& devices);

}  // namespace spc
