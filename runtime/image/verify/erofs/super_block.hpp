#pragma once

#include "image/verify/erofs/window.hpp"

namespace spc::verify::erofs {

/// Inodes are numbered by their place in the image, in units of this size. The root's number is
/// always the same.
inline constexpr std::uint64_t kSlot = 32;
inline constexpr std::uint64_t kRoot = 40;

/// What the super block says beyond what is the same in all images.
struct SuperBlock {
  std::uint64_t inodes = 0;
  bool is_compressed = false;  ///< files may be, with lz4

  /// True if the layer has EROFS's magic and not that of squashfs, which has it elsewhere.
  static Result<bool> is_there(LayerBytes& layer);
  /// All of block 0 but the root's inode and what is behind it.
  static Result<SuperBlock> read(Window& image);
};

}  // namespace spc::verify::erofs
