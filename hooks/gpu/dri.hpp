#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// A GPU whose driver is the kernel's DRM and whose libraries the image brings.
struct DriGpu {
  std::string render_node, card_node;  ///< /dev/dri/renderD128, /dev/dri/card0 or empty
  std::string pci_address;
};

/// Those of a vendor (0x1002: AMD, 0x8086: Intel) as /sys/class/drm lists them, by PCI address.
std::vector<DriGpu> dri_gpus(const HookContext& context, std::string_view vendor);

}  // namespace spc
