#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// A GPU with a DRM driver in the kernel and libraries in the image.
struct DriGpu {
  std::string render_node, card_node;  ///< /dev/dri/renderD128, /dev/dri/card0 or empty
  std::string pci_address;
};

/// GPUs of a vendor (0x1002: AMD, 0x8086: Intel) in /sys/class/drm, by PCI address.
std::vector<DriGpu> dri_gpus(const HookContext& context, std::string_view vendor);

}  // namespace spc
