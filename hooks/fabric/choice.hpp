#pragma once

#include <vector>

#include "base/result.hpp"
#include "hooks/fabric/node.hpp"

namespace spc {

struct FabricAdapter {
  FabricDevice device;
  bool chosen = true;     ///< the step may use it
  bool withheld = false;  ///< by the site's fabric_devices, whatever the job says
};

/// Which adapters a step may use, of those in the site's fabric_devices, according to the job's
/// MELLANOX_VISIBLE_DEVICES (Mellanox adapters, as in enroot) and FABRIC_VISIBLE_DEVICES (all).
/// Unset, empty, `all` and `void` select all; `none` selects none; otherwise a list of indices (in
/// the order of fabric_devices(), among those the variable applies to), names or PCI addresses. An
/// unknown one is an error. The image's values are ignored.
Result<std::vector<FabricAdapter>> choose_adapters(const HookContext& context,
                                                   std::vector<FabricDevice> devices);

}  // namespace spc
