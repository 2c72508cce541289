#pragma once

#include <optional>
#include <vector>

#include "image/verify/meta_stream.hpp"
#include "image/verify/super_block.hpp"

namespace spc::verify {

/// An inode's description of a file's data. The sizes of its blocks follow the inode.
struct FileData {
  std::uint64_t start = 0;
  std::uint64_t size = 0;
  std::uint64_t holes = 0;
  std::uint32_t fragment = 0;
  std::uint32_t fragment_offset = 0;
};

/// The blocks of files and fragments: their positions, sizes, and with zstd the headers of
/// compressed ones. Files' blocks are not decompressed: that would take a quarter of the time of
/// the conversion, and a damaged block only causes a read error. Nor are fragments, but with lz4,
/// where nothing else says how long they are.
///
/// A file smaller than a block is part of a fragment. All others have blocks of their own, the last
/// one short. Data replaced by a later entry of the archive is still there and belongs to no file:
/// there may be gaps between files.
class DataArea {
 public:
  DataArea(LayerBytes& layer, const Layout& layout);

  /// First: the fragment table and blocks.
  Result<void> check_fragments();
  /// One file; reads its block sizes from `inodes`.
  Result<void> check_file(const FileData& file, MetaStream& inodes);
  /// Last: no two files share a byte.
  Result<void> check_apart();

 private:
  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  Result<void> check_part(const FileData& file);
  Result<std::size_t> check_block(std::uint64_t place, std::uint32_t stored_size,
                                  std::optional<std::size_t> wanted);
  Result<std::size_t> unpacked_size(std::uint64_t place, std::uint32_t size,
                                    std::optional<std::size_t> wanted);

  LayerBytes& layer_;
  const Layout& layout_;
  BlockReader blocks_;
  std::vector<std::byte> stored_, unpacked_;   ///< of the fragment that is looked at, with lz4
  std::vector<std::uint32_t> fragment_sizes_;  ///< decompressed
  std::vector<Extent> extents_;                ///< in the file, of file and fragment blocks
  std::vector<Extent> parts_;                  ///< of fragments, as if each had the size of a block
};

}  // namespace spc::verify
