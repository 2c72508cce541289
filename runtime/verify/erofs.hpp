#pragma once

#include <sys/stat.h>

#include <array>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "verify/blocks.hpp"

namespace spc::verify::erofs {

// --- window ---

inline constexpr std::uint64_t kBlock = 4096;

/// Returns the number of blocks, or of `piece`s, that `bytes` occupy.
constexpr std::uint64_t pieces(std::uint64_t bytes, std::uint64_t piece = kBlock) {
  return bytes / piece + (bytes % piece == 0 ? 0 : 1);
}

/// Buffered access to the image: reading forward takes few system calls.
class Window {
 public:
  explicit Window(LayerBytes& layer) : layer_(layer) {}

  /// Returns bytes of the image, valid until the next call. Refuses a range beyond the image's end.
  Result<std::span<const std::byte>> at(std::uint64_t offset, std::uint64_t size);
  /// As at(), without buffering.
  Result<void> copy(std::uint64_t offset, std::span<std::byte> into);
  [[nodiscard]] std::uint64_t size() const { return layer_.size(); }

 private:
  [[nodiscard]] bool within(std::uint64_t offset, std::uint64_t size) const;
  [[nodiscard]] bool keeps(std::uint64_t offset, std::uint64_t size) const;

  LayerBytes& layer_;
  std::vector<std::byte> bytes_;
  std::uint64_t begin_ = 0;
};

/// Reads the little-endian number at `at`, which must be within the bytes.
template <std::unsigned_integral Number>
Number number(std::span<const std::byte> bytes, std::size_t at) {
  return Fields(bytes.subspan(at)).take<Number>();
}

bool all_zero(std::span<const std::byte> bytes);

// --- super block ---

/// Unit of inode numbers: an inode's number is its position divided by this size. The root's number
/// is constant.
inline constexpr std::uint64_t kSlot = 32;
inline constexpr std::uint64_t kRoot = 40;

/// The super block's fields that differ between images.
struct SuperBlock {
  std::uint64_t inodes = 0;
  bool is_compressed = false;  ///< files may be compressed with lz4

  /// Returns whether the layer has EROFS's magic, and no squashfs magic, which is at another
  /// offset.
  static Result<bool> is_there(LayerBytes& layer);
  /// Checks all of block 0 except the record of the root's inode.
  static Result<SuperBlock> read(Window& image);
};

// --- inode ---

/// Location of an inode's content.
enum class DataLayout : std::uint16_t {
  plain = 0,       ///< in consecutive blocks
  compressed = 1,  ///< in clusters, whose index follows the inode
  inlined = 2,     ///< after the inode
  chunks = 4,      ///< in chunks, whose list follows the inode
};

/// The inode proper. Its attributes follow, and then the data of its layout. Together they are its
/// record.
struct Inode {
  static constexpr std::uint64_t kSize = 64;

  std::uint64_t nid = 0;  ///< its number, derived from its position
  DataLayout layout = DataLayout::plain;
  std::uint16_t mode = 0;
  std::uint64_t size = 0;
  std::uint32_t start = 0;  ///< first block, or a value that depends on the layout
  std::uint32_t links = 0;
  std::uint64_t attributes = 0;  ///< size in bytes

  /// Reads the fields of the inode without its attributes and layout data.
  static Result<Inode> read(Window& image, std::uint64_t nid);

  [[nodiscard]] std::uint64_t begin() const { return nid * kSlot; }
  /// Returns the end of the attributes.
  [[nodiscard]] std::uint64_t content() const { return begin() + kSize + attributes; }
  [[nodiscard]] bool is(mode_t type) const { return (mode & S_IFMT) == type; }
  /// Checks that the record is within one block, or begins at a block's start and is longer.
  [[nodiscard]] Result<void> check_place(std::uint64_t end) const;
};

// --- used ranges ---

/// The ranges of all records and contents, which must not overlap. There may be unused ranges, left
/// by replaced entries.
class Used {
 public:
  explicit Used(std::uint64_t blocks) : blocks_(blocks) {}

  /// Adds a record. Inodes must be added in ascending order, first directories and then all others.
  Result<void> record(const Inode& inode, std::uint64_t end);
  void begin_others() { last_end_ = 0; }
  /// Adds blocks of content.
  Result<void> content(std::uint64_t first, std::uint64_t count);
  /// Checks for overlaps. Call last.
  Result<void> check_apart();

 private:
  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  using Extents = std::vector<Extent>;

  static void add(Extents& extents, Extent extent);

  std::uint64_t blocks_;
  std::uint64_t last_end_ = 0;
  Extents records_, contents_;  ///< adjacent ranges are merged
};

// --- content ---

/// Returns the position of an inode's text: a directory's entries or a symbolic link's target. The
/// text must be inlined if possible. Adds the inode and its blocks to `used`.
Result<std::uint64_t> place_text(const Inode& inode, Used& used);

/// The content of a regular file. Its blocks are not read: a damaged one only causes a read error.
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
  std::uint64_t at_ = 0;                 ///< position of the next index or list entries
  std::uint64_t first_ = 0, count_ = 0;  ///< blocks of the file
  bool has_compressed_ = false;
};

// --- xattrs ---

/// Checks the extended attributes of an inode: user.* from images, and on directories both forms of
/// overlayfs's opaque mark. Names must be unique.
Result<void> check_attributes(Window& image, const Inode& inode);

// --- directory ---

/// Type of an entry's inode.
enum class EntryType : std::uint8_t {
  file = 1,
  directory = 2,
  whiteout = 3,
  fifo = 5,
  symlink = 7
};

/// The entries of one directory, in blocks. The names of each block follow its entries, and a block
/// is filled before the next one begins.
class Directory {
 public:
  struct Entry {
    std::uint64_t nid = 0;
    EntryType type = EntryType::file;
    std::string_view name;  ///< valid until the next call
  };

  /// Reads `size` bytes, at least one, from `begin`.
  Directory(Window& image, std::uint64_t begin, std::uint64_t size)
      : image_(image), begin_(begin), left_(size) {}

  /// Returns the next entry, or empty at the end. Checks that names are valid and sorted, including
  /// `.` and `..`.
  Result<std::optional<Entry>> next();

 private:
  Result<void> load();
  Result<std::size_t> name_end(std::size_t begin) const;
  Result<void> check_name(std::string_view name);
  [[nodiscard]] std::span<const std::byte> block() const { return std::span(block_).first(size_); }

  Window& image_;
  std::uint64_t begin_, left_;  ///< range of the unread blocks
  std::array<std::byte, kBlock> block_;
  std::size_t size_ = 0;            ///< size of this block
  std::size_t at_ = 0, count_ = 0;  ///< index and number of its entries
  std::size_t names_ = 0;           ///< start of the next name
  std::size_t room_ = 0;            ///< free space after the last name of the previous block
  /// the entry is the first of its block, and the block is not the first
  bool is_first_ = false;
  std::string last_name_;
};

// --- tree ---

/// All inodes reachable from the root, in their order in the image: first directories, each after
/// its parent, then the other entries. No inode is read twice.
class Tree {
 public:
  Tree(Window& image, const SuperBlock& super)
      : image_(image), super_(super), used_(image.size() / kBlock) {}

  Result<void> check();

 private:
  /// A directory found in an entry.
  struct Named {
    std::uint64_t nid = 0;
    std::uint64_t parent = 0;
    std::uint32_t depth = 0;
    bool operator>(const Named& other) const { return nid > other.nid; }
  };
  using Waiting = std::priority_queue<Named, std::vector<Named>, std::greater<>>;

  Result<void> check_directories();
  Result<void> check_directory(const Named& named);
  /// Checks an entry. Returns whether it is a subdirectory.
  Result<bool> check_entry(const Named& directory, const Directory::Entry& entry);
  Result<void> check_behind_root(std::uint64_t end);
  Result<void> check_others();
  Result<void> check_other(std::uint64_t nid, EntryType type, std::uint64_t names);
  Result<void> check_target(const Inode& inode);

  Window& image_;
  const SuperBlock& super_;
  Used used_;
  Waiting waiting_;
  std::vector<std::uint64_t> names_;  ///< inode number and type of each entry that is no directory
  std::uint64_t inodes_ = 0;
};

}  // namespace spc::verify::erofs
