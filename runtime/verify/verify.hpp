#pragma once

#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "verify/blocks.hpp"

namespace spc::verify {

// --- sandbox ---

/// Confines this process: it can only read descriptor `layer`, write its reason to descriptor 2,
/// allocate memory and exit. `size` of the layer limits the CPU time.
Result<void> confine(int layer, std::uint64_t size);

}  // namespace spc::verify

namespace spc {

// --- verification ---

/// Reads a layer's image a second time, with code that shares no part with the writer, and accepts
/// only images that the layer writer can have written: the kernel mounts no others.
/// ErrorKind::refused gives the reason; other errors mean that the layer could not be read. Memory:
/// about 50 bytes per inode and 2 MiB.
Result<void> verify_layer(verify::LayerBytes& layer);
Result<void> verify_layer(std::span<const std::byte> layer);

}  // namespace spc
