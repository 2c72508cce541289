#pragma once

#include <vector>

#include "base/result.hpp"
#include "hooks/fabric/node.hpp"

namespace spc {

struct FabricAdapter {
  FabricDevice device;
  bool chosen = true;  ///< the step may use it
};

/// Which adapters a step may use, by the job's MELLANOX_VISIBLE_DEVICES (those of Mellanox, as enroot has it) and
/// FABRIC_VISIBLE_DEVICES (all). Unset, empty, `all` and `void` leave all; `none` leaves none; else a list of numbers (in the order
/// of fabric_devices, of those that the variable speaks of), names or PCI addresses. One that does not exist is an error.
/// What an image says about it does not count.
Result<std::vector<FabricAdapter>> choose_adapters(const HookContext& context, std::vector<FabricDevice> devices);

}  // namespace spc
