#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// Whether an image's own libcuda (NVIDIA's forward compatibility package) replaces the driver's.
struct CudaCompat {
  std::string directory;  ///< in the container, to be searched before all others; empty: the
                          ///< driver's own libcuda is used
  std::string version;    ///< of the libcuda there; empty: none that is usable
  std::string reason;     ///< why it is used or not, for the user; empty: there is none
};

/// Searches /usr/local/cuda/compat of the image, or its lib.real, which must have exactly one
/// libcuda.so.X.Y. The note in that library decides, or without one whether it has a later major
/// version than the node's driver: the rules of NVIDIA's toolkit (cmd/nvidia-cdi-hook/cudacompat).
/// Nothing in it is mounted or executed, and links do not lead out of the image. `why_not`: see
/// why_no_cuda_compat(); not empty, none is used.
CudaCompat cuda_compat_of_image(const HookContext& context, std::string_view driver_version,
                                std::string_view why_not = {});

/// Why none is used on this node: `cuda_compat` in config.toml, or one of the GPUs that the step
/// can open does not support it. Empty: neither.
std::string why_no_cuda_compat(const HookContext& context,
                               const std::vector<NvidiaGpu>& accessible);

}  // namespace spc
