#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace spc {

/// What the first bytes of a squashfs 4.0 image say. Having one means: it is whole, and all tables
/// begin within it.
struct SquashfsSuper {
  static constexpr std::size_t kBytes = 96;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  std::uint32_t inode_count = 0;
  std::uint32_t block_size = 0;  ///< bytes, a power of two
  std::uint32_t fragment_count = 0;
  std::uint16_t compressor = 0;  ///< compressor_name() knows it
  std::uint64_t root = 0;        ///< a reference into the inode table
  std::uint64_t bytes_used = 0;
  std::uint64_t inode_table = 0;  ///< offsets in the image, in bytes
  std::uint64_t directory_table = 0;
  std::uint64_t fragment_places =
      0;  ///< of the list of the fragment table's blocks; kNone without fragments
  std::uint64_t xattr_sets = kNone;  ///< kNone: the image has no extended attributes
};

/// Whether these bytes begin a squashfs, of whatever version.
bool looks_like_squashfs(std::span<const std::byte> head);

/// `head`: the image's first bytes; `available`: bytes from there to the end of the file. The error
/// says what is wrong with the image without naming it.
Result<SquashfsSuper> parse_squashfs_super(std::span<const std::byte> head,
                                           std::uint64_t available);

/// "gzip", "zstd", …; nullptr for a number that means nothing.
const char* compressor_name(std::uint16_t compressor);

}  // namespace spc
