#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "verify/blocks.hpp"

namespace spc::verify {

// --- data area ---

/// An inode's description of a file's data. The sizes of its blocks follow the inode.
struct FileData {
  std::uint64_t start = 0;
  std::uint64_t size = 0;
  std::uint64_t holes = 0;
  std::uint32_t fragment = 0;
  std::uint32_t fragment_offset = 0;
};

/// The blocks of files and fragments: their positions, sizes, and for zstd the headers of
/// compressed ones. Blocks of files are not decompressed: that would take a quarter of the time of
/// the conversion, and a damaged block only causes a read error. Fragments are decompressed only
/// for lz4, because their size is stored nowhere else.
///
/// A file smaller than a block is part of a fragment. All others have blocks of their own, the last
/// one short. Data replaced by a later entry of the archive remains and belongs to no file, so
/// there may be gaps between files.
class DataArea {
 public:
  DataArea(LayerBytes& layer, const Layout& layout);

  /// Checks the fragment table and blocks. Call first.
  Result<void> check_fragments();
  /// Checks one file, whose block sizes it reads from `inodes`.
  Result<void> check_file(const FileData& file, MetaStream& inodes);
  /// Checks that no two files share a byte. Call last.
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
  std::vector<std::byte> stored_, unpacked_;   ///< buffers for the current fragment, with lz4
  std::vector<std::uint32_t> fragment_sizes_;  ///< decompressed
  std::vector<Extent> extents_;                ///< ranges of file and fragment blocks in the image
  /// parts of fragments, at positions as if each fragment had the size of a block
  std::vector<Extent> parts_;
};

// --- attributes ---

/// The sets of extended attributes that inodes refer to by number: user.* from images, and
/// overlayfs's mark of an opaque directory. Names in a set are unique.
class Attributes {
 public:
  static Result<Attributes> read(LayerBytes& layer, const Layout& layout);

  /// Records an inode's use of a set. Each set must be used, and in order of first use.
  Result<void> use(std::uint32_t set, bool by_directory);
  [[nodiscard]] bool all_used() const { return used_ == hides_.size(); }

 private:
  std::vector<bool> hides_;  ///< for each set: whether it has overlayfs's mark
  std::size_t used_ = 0;
};

inline constexpr std::uint32_t kNoAttributes = 0xffffffff;

// --- inode tree ---

/// The inodes and listings, each read once in file order.
///
/// The layer writer stores an inode after all entries of its listing. First come the
/// subdirectories, each after its content, in the order of their names. Then come the other entries
/// in that order, unless already stored under another name, and then the directory itself. Listings
/// are in the order of their directories. Because this order is checked, there are no cycles, and
/// no directory has two parents or none.
class InodeTree {
 public:
  InodeTree(LayerBytes& layer, const Layout& layout, DataArea& data, Attributes& attributes);

  Result<void> check();

 private:
  /// Types as in listings.
  enum class Kind : std::uint8_t {
    none = 0,
    directory = 1,
    file = 2,
    symlink = 3,
    whiteout = 5,
    fifo = 6
  };

  /// State of an inode, kept small: images have millions of them.
  struct Inode {
    std::uint32_t block;
    std::uint16_t offset;
    Kind kind;
    bool named;           ///< found in a listing
    std::uint32_t order;  ///< its position among the inodes, from 0
    /// number of names not yet found in a listing; for a directory its parent
    std::uint32_t link_left;
    std::uint32_t first;   ///< directories: position of the first inode below it, or its own
    std::uint32_t height;  ///< directories: height of the tree below it
  };
  struct Common;
  struct DirectoryFields;
  class Order;

  Result<void> check_inode(std::uint32_t order);
  Result<void> check_file(Inode& inode, bool is_long);
  Result<void> check_symlink(Inode& inode);
  Result<void> check_directory(Inode& inode, std::uint32_t number, bool is_long);
  Result<DirectoryFields> read_directory(bool is_long);
  Result<Inode*> named_by(const Listing::Entry& entry);
  Result<void> check_index(const Listing::Begin& begin, std::string_view name);

  const Layout& layout_;
  DataArea& data_;
  Attributes& attributes_;
  MetaStream inodes_;
  MetaStream listings_;
  struct Free {
    void operator()(Inode* inodes) const { std::free(inodes); }
  };
  std::unique_ptr<Inode[], Free> known_;  ///< by number, from 1
  std::uint64_t names_left_ = 0;          ///< number of names not yet found in a listing
};

}  // namespace spc::verify
