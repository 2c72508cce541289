#pragma once

#include <span>

#include "image/verify/input/layer_bytes.hpp"

namespace spc {

/// Reads a layer's image a second time, with code that shares nothing with the writer's, and
/// accepts only what our writer can have written: the kernel never sees anything else.
/// ErrorKind::refused gives the reason; other errors mean that the layer could not be read. Memory:
/// about 50 bytes per inode and 2 MiB.
///
/// A layer is a squashfs or an EROFS image. One that begins with the magic of squashfs is no EROFS
/// image, whatever else is in it.
///
/// Accepted without being the writer's exact bytes: any names, permissions, dates, targets,
/// attributes and contents (they are the image's), data that belongs to no file (left by replaced
/// entries), another order of inode numbers, and other ways to compress or share data that reads
/// the same.
Result<void> verify_layer(verify::LayerBytes& layer);
Result<void> verify_layer(std::span<const std::byte> layer);

}  // namespace spc
