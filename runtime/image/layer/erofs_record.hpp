#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "image/layer/tree.hpp"

namespace spc::erofs {

// The form of an image, from Linux's fs/erofs/erofs_fs.h (Documentation/filesystems/erofs.rst).
// Numbers are little-endian.

inline constexpr std::size_t kBlock = 4096;
inline constexpr std::size_t kSlot =
    32;  ///< inodes begin at multiples; their number is how many are in front of them
inline constexpr std::size_t kInodeBytes = 64;
inline constexpr std::uint64_t kRootNumber = 40;  ///< of the root, behind the super block
inline constexpr std::uint32_t kNoBlock = 0xffffffff;

/// How the content of an inode lies.
enum class Layout : std::uint16_t { plain = 0, compressed = 1, inlined = 2, chunks = 4 };

struct RecordHead {
  Layout layout = Layout::plain;
  std::uint64_t size = 0;  ///< of the content
  std::uint32_t position =
      0;  ///< depends on the layout: the first block, how many blocks, or the size of chunks
  std::uint32_t links = 1;
};

constexpr std::uint64_t blocks_of(std::uint64_t bytes) { return (bytes + kBlock - 1) / kBlock; }

/// The inode and its attributes; content or block positions follow.
Result<std::string> record_head(const Inode& inode, const RecordHead& head);
/// Its size, in bytes.
std::size_t head_bytes(const Inode& inode);

/// Sets how many names a written inode has.
Result<void> write_links(int output, std::uint64_t number, std::uint32_t links);

}  // namespace spc::erofs
