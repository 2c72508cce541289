#pragma once

#include <cstdint>
#include <vector>

#include "hooks/gpu/nvidia_node.hpp"

namespace spc {

/// The directory by which programs reach the control daemon of MPS, where that one runs; empty
/// otherwise.
std::string mps_directory(const HookContext& context);

/// All driver files that a container could need; none if libraries and kernel module do not match.
std::vector<NvidiaOffer> offers_of(const HookContext& context, const NvidiaDriver& driver);

/// In `create`: gives the mounts for `uses` their target in this image, with links and sonames, and
/// drops the others.
void place_files(const HookContext& context, const std::vector<NvidiaOffer>& offers,
                 std::uint32_t uses, Edits& edits);

}  // namespace spc
