#pragma once

#include <sys/stat.h>

#include "image/verify/erofs/super_block.hpp"

namespace spc::verify::erofs {

/// Where an inode's content is.
enum class DataLayout : std::uint16_t {
  plain = 0,       ///< in consecutive blocks
  compressed = 1,  ///< in clusters, an index of which follows the inode
  inlined = 2,     ///< behind the inode
  chunks = 4,      ///< in chunks, a list of which follows the inode
};

/// The inode proper. Behind it follow its attributes, and then what its layout demands: all of this
/// is its record.
struct Inode {
  static constexpr std::uint64_t kSize = 64;

  std::uint64_t nid = 0;  ///< its number, which is its place
  DataLayout layout = DataLayout::plain;
  std::uint16_t mode = 0;
  std::uint64_t size = 0;
  std::uint32_t start = 0;  ///< first block, or what the layout makes of it
  std::uint32_t links = 0;
  std::uint64_t attributes = 0;  ///< bytes

  /// The fields that all inodes have, without what follows.
  static Result<Inode> read(Window& image, std::uint64_t nid);

  [[nodiscard]] std::uint64_t begin() const { return nid * kSlot; }
  /// Where the attributes end.
  [[nodiscard]] std::uint64_t content() const { return begin() + kSize + attributes; }
  [[nodiscard]] bool is(mode_t type) const { return (mode & S_IFMT) == type; }
  /// A record lies within one block, or begins with one and is longer.
  [[nodiscard]] Result<void> check_place(std::uint64_t end) const;
};

}  // namespace spc::verify::erofs
