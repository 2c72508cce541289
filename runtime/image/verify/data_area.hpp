#pragma once

#include <vector>

#include "image/verify/meta_stream.hpp"
#include "image/verify/super_block.hpp"

namespace spc::verify {

/// What an inode says about a file's data. The sizes of its blocks follow the inode.
struct FileData {
  std::uint64_t start = 0;
  std::uint64_t size = 0;
  std::uint64_t holes = 0;
  std::uint32_t fragment = 0;
  std::uint32_t fragment_offset = 0;
};

/// The blocks of files and fragments: their places, their sizes, and the headers of those that are compressed. They are
/// not unpacked: that takes a quarter of the time in which they were made, and a damaged block is an error of the read.
///
/// A file smaller than a block is a part of a fragment. All others have blocks of their own, the last one short. What a
/// later entry of the archive replaced is still there, so no file claims it: between the files there may be gaps.
class DataArea {
 public:
  DataArea(LayerBytes& layer, const Layout& layout);

  /// Comes first: the fragments' table and blocks.
  Result<void> check_fragments();
  /// One file; takes its block sizes from `inodes`.
  Result<void> check_file(const FileData& file, MetaStream& inodes);
  /// Comes last: no two files share a byte.
  Result<void> check_apart();

 private:
  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  Result<void> check_part(const FileData& file);
  Result<std::size_t> check_block(std::uint64_t place, std::uint32_t stored_size);

  LayerBytes& layer_;
  const Layout& layout_;
  std::vector<std::uint32_t> fragment_sizes_;  ///< unpacked
  std::vector<Extent> extents_;                ///< in the file, of files' and fragments' blocks
  std::vector<Extent> parts_;                  ///< of fragments, as if each had the size of a block
};

}  // namespace spc::verify
