#pragma once

#include "image/verify/erofs/used.hpp"

namespace spc::verify::erofs {

/// Where the text of an inode is: a directory's entries or a symbolic link's target. It is inlined
/// wherever that is possible. Adds the inode and its blocks to what is used.
Result<std::uint64_t> place_text(const Inode& inode, Used& used);

/// A regular file. Blocks are not read: a damaged one only causes a read error.
class FileContent {
 public:
  FileContent(Window& image, const Inode& inode, Used& used)
      : image_(image), inode_(inode), used_(used) {}

  Result<void> check(bool may_be_compressed);

 private:
  Result<void> check_chunks();
  Result<void> check_clusters();
  Result<void> check_cluster_head();
  Result<void> check_unit(std::uint64_t size);
  Result<void> check_plain_unit(std::span<const std::byte> entries);
  Result<void> check_compressed_unit(std::span<const std::byte> entries, std::uint64_t size);
  Result<void> take_blocks(std::uint64_t first, std::uint64_t count);

  Window& image_;
  const Inode& inode_;
  Used& used_;
  std::uint64_t at_ = 0;                 ///< what of the index or list comes next
  std::uint64_t first_ = 0, count_ = 0;  ///< its blocks
  bool has_compressed_ = false;
};

}  // namespace spc::verify::erofs
