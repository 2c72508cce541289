#pragma once

#include <string>

#include "hooks/cdi/registry.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// The directory of the image with the libraries of a newer CUDA than the node's driver has; enable-cuda-compat is about it.
inline constexpr char kCudaCompatDirectory[] = "/usr/local/cuda/compat";

/// What these devices are to a step, on the host, as the user: device nodes, mounts, variables, and what their hooks are for.
/// Refused is what cannot be done, or would show more than a device: mounts of or over `/`, file systems of other types than
/// tmpfs, network interfaces, programs that are executed.
Result<Edits> edits_for(const HookContext& context, const std::vector<CdiEntry>& devices);

}  // namespace spc
