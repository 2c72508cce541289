#pragma once

#include <string>

#include "hooks/cdi/registry.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// In Edits::remembered: the version of the node's NVIDIA driver, if CUDA libraries in the image
/// may replace its own (enable-cuda-compat).
inline constexpr char kCdiDriverVersion[] = "driver version";

/// The socket of a daemon that need not run (nvidia-persistenced, the fabric manager, MPS), by its
/// path on the host: files name those that ran when they were generated, and the devices work
/// without.
bool is_of_daemon(const std::string& path);

/// Injects these devices into a step, on the host, as the user: device nodes, mounts, variables,
/// and the effects of their hooks; unknown ones of NVIDIA's program are left out with a warning.
/// Refuses what cannot be done or would expose more than a device: mounts of or over `/`, file
/// system types other than tmpfs, network interfaces, shells.
Result<Edits> edits_for(const HookContext& context, const std::vector<CdiEntry>& devices);

}  // namespace spc
