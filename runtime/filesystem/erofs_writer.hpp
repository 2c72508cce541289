#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "filesystem/tree.hpp"
#include "protocol/layer.hpp"

namespace spc::erofs {

// --- erofs record ---

// The on-disk format, from Linux's fs/erofs/erofs_fs.h (Documentation/filesystems/erofs.rst).
// Numbers are little-endian.

inline constexpr std::size_t kBlock = 4096;
/// inodes are aligned to it; an inode's number is its position in these units
inline constexpr std::size_t kSlot = 32;
inline constexpr std::size_t kInodeBytes = 64;
inline constexpr std::uint64_t kRootNumber = 40;  ///< of the root, after the super block
inline constexpr std::uint32_t kNoBlock = 0xffffffff;
inline constexpr std::size_t kAttributesHeader = 12;  ///< bytes, before an inode's attributes
inline constexpr std::size_t kSuperAt = 1024;

struct SuperBlock {
  static constexpr std::uint32_t kMagic = 0xe0f5e1e2;
  static constexpr std::uint32_t kChunks = 4;
  /// Leading zeros before compressed data in clusters of several blocks, and a list of options.
  static constexpr std::uint32_t kCompressed = 3;
  static constexpr std::uint16_t kLz4 = 1;

  std::uint32_t magic = kMagic, checksum = 0;
  std::uint32_t compatible = 3;  ///< a checksum; dates are modification times
  std::uint8_t block_bits = 12, slots = 0;
  std::uint16_t root = kRootNumber;
  std::uint64_t inodes = 0, date = 0;
  std::uint32_t nanoseconds = 0, blocks = 0;
  std::uint32_t first_record = 0, shared_attributes = 0;  ///< blocks where they begin
  char uuid[16] = {}, name[16] = {};
  std::uint32_t incompatible = kChunks;
  std::uint16_t algorithms = 0;
  char unused[42] = {};
  std::uint16_t options_size = 0, window = 0, most_blocks = 0;  ///< of lz4, only if compressed
  char unused_options[10] = {};
};
static_assert(sizeof(SuperBlock) == 144);

/// Layout of an inode's content.
enum class Layout : std::uint16_t { plain = 0, compressed = 1, inlined = 2, chunks = 4 };

struct RecordHead {
  Layout layout = Layout::plain;
  std::uint64_t size = 0;  ///< size of the content
  /// depends on the layout: the first block, the number of blocks, or the chunk size
  std::uint32_t position = 0;
  std::uint32_t links = 1;
};

constexpr std::uint64_t blocks_of(std::uint64_t bytes) { return (bytes + kBlock - 1) / kBlock; }

/// Returns the inode and its attributes. Content or block positions follow.
Result<std::string> record_head(const Inode& inode, const RecordHead& head);
/// Returns the size of record_head(), in bytes.
std::size_t head_bytes(const Inode& inode);

/// Sets the link count of an inode that is already written.
Result<void> write_links(int output, std::uint64_t number, std::uint32_t links);

}  // namespace spc::erofs

namespace spc {

// --- erofs tables ---

/// Position of the first data block: after the block of the super block and the root.
inline constexpr std::uint64_t kErofsDataBegin = 4096;

/// Writes everything but the data and the small files that the data writer has written with their
/// inodes: the other inodes, directories and finally the super block. All owners are 0:0, and the
/// same tree gives the same bytes.
///
/// Linux 5.15 and later read the image; idmapped mounts work from 5.19 on.
Result<void> write_erofs_tables(int output, std::uint64_t data_end, LayerCompression compression,
                                Inode& root);

}  // namespace spc
