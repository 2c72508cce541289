#pragma once

#include <span>

#include "image/verify/layer_bytes.hpp"

namespace spc {

/// Reads a layer's image a second time, with code that shares nothing with the writer's, and accepts only what our writer
/// can have written: then the kernel never meets anything else. An ErrorKind::refused says what is wrong; other
/// errors say that the layer could not be read. Memory: about 50 bytes an inode and 2 MiB.
///
/// What is accepted without being the writer's very bytes: any names, permissions, dates, targets, attributes and contents
/// (they are the image's), data that no file claims (the writer leaves what a later entry replaced), numbers of inodes in
/// another order, and another way to compress or share what is the same when it is read.
Result<void> verify_layer(verify::LayerBytes& layer);
Result<void> verify_layer(std::span<const std::byte> layer);

}  // namespace spc
