#pragma once

#include <string>

#include "hooks/cdi/registry.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- inject ---

/// Key in Edits::remembered: the version of the node's NVIDIA driver, if CUDA libraries in the
/// image may replace its own (enable-cuda-compat).
inline constexpr char kCdiDriverVersion[] = "driver version";

/// Returns whether the path on the host is the socket of an optional daemon (nvidia-persistenced,
/// the fabric manager, MPS). CDI files list the sockets of daemons that ran when they were
/// generated, and the devices work without them.
bool is_of_daemon(const std::string& path);

/// Injects these devices into a step, on the host, as the user: device nodes, mounts, variables,
/// and the effects of their hooks. Unknown hooks of NVIDIA's program are left out with a warning.
/// Refuses edits that are impossible or would expose more than a device: mounts of or over `/`,
/// file system types other than tmpfs, network interfaces, shells.
Result<Edits> edits_for(const HookContext& context, const std::vector<CdiEntry>& devices);

// --- cdi ---

/// 60-cdi: injects the devices of CDI files.
extern const Hook cdi_hook;

/// Returns whether the GPUs of this step, if any, are injected from a CDI file of kind
/// nvidia.com/gpu, so that 98-nvidia must not inject them. True if config.toml requests it
/// (prefer_cdi) and such a file has a device that the step may open, or if the user names devices
/// of this kind.
bool cdi_serves_gpus(const HookContext& context);

}  // namespace spc
