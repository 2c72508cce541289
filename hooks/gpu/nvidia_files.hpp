#pragma once

#include <cstdint>
#include <vector>

#include "hooks/gpu/nvidia_node.hpp"

namespace spc {

/// All files of the driver that a container could need; none if libraries and kernel module do not belong together.
std::vector<NvidiaOffer> offers_of(const HookContext& context, const NvidiaDriver& driver);

/// In `create`: gives the mounts that are for one of `uses` their target in this image, with their links and sonames, and leaves
/// out the others.
void place_files(const HookContext& context, const std::vector<NvidiaOffer>& offers, std::uint32_t uses, Edits& edits);

}  // namespace spc
