#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// A GPU with a DRM driver in the kernel and libraries in the image.
struct DriGpu {
  std::string render_node, card_node;  ///< /dev/dri/renderD128, /dev/dri/card0 or empty
  std::string pci_address;  ///< 0000:c1:00.0; of a partition after the first: amdgpu_xcp_0
};

/// GPUs of a vendor (0x1002: AMD, 0x8086: Intel) in /sys/class/drm, by PCI address, or as ROCm
/// counts them.
std::vector<DriGpu> dri_gpus(const HookContext& context, std::string_view vendor);

}  // namespace spc
