#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "image/fuse/image_bytes.hpp"

namespace spc::fuse {

struct Inode {
  static constexpr std::uint32_t kNone = ~0U;

  std::uint64_t reference = 0;  ///< its name in directories; hard links share it
  std::uint32_t number = 0;
  mode_t mode = 0;  ///< type and permissions, without setuid and setgid
  std::uint32_t links = 0;
  std::uint32_t mtime = 0;
  std::uint64_t size = 0;    ///< of a file's content or a link's target
  std::uint32_t device = 0;  ///< as in the image; 0 is 0:0
  std::uint32_t xattrs = kNone;

  // Position of the remaining data.
  TableReader::Position details;  ///< a file's block sizes, or a link's target
  std::uint64_t first_block = 0;
  std::uint32_t fragment = kNone;
  std::uint32_t fragment_offset = 0;
  TableReader::Position listing;
  std::uint32_t listing_bytes = 0;
};

/// A directory's entries without "." and "..", sorted by name, without duplicates.
struct Directory {
  struct Entry {
    std::uint64_t reference = 0;
    std::uint32_t number = 0;
    std::uint32_t name_at = 0;
    std::uint8_t name_bytes = 0;
    mode_t type = 0;  ///< S_IFDIR, …
  };
  std::string names;
  std::vector<Entry> entries;

  [[nodiscard]] std::string_view name(const Entry& entry) const {
    return std::string_view(names).substr(entry.name_at, entry.name_bytes);
  }
  /// nullptr: no such entry.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  [[nodiscard]] std::size_t cost() const { return names.capacity() + entries.capacity() * sizeof(Entry); }
};

/// A part of a file's content.
struct Piece {
  SharedBlock block;  ///< empty: zeros
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// A defensive squashfs reader: no position or size from the image is used before it is checked against the actual
/// bounds, and an error affects only that read. Thread-safe.
///
/// Device nodes other than 0:0, overlayfs's whiteout, are hidden.
class SquashfsReader {
 public:
  /// `cache`: bytes of directories kept.
  explicit SquashfsReader(std::unique_ptr<ImageBytes> image, std::size_t cache = 16 << 20)
      : image_(std::move(image)), directories_(cache) {}

  [[nodiscard]] const SquashfsSuper& super() const { return image_->super(); }
  /// Empty: a device node.
  Result<std::optional<Inode>> inode(std::uint64_t reference);
  Result<std::shared_ptr<const Directory>> directory(const Inode& inode);
  Result<std::string> link_target(const Inode& inode);
  /// At most `size` bytes; less only at the end of the file.
  Result<std::vector<Piece>> read(const Inode& file, std::uint64_t start, std::size_t size);
  /// Full names and values.
  Result<std::vector<std::pair<std::string, std::string>>> xattrs(const Inode& inode);

 private:
  /// Sizes of a file's blocks from one on, and the position of the first of them in the image.
  struct BlockSizes {
    std::uint64_t position = 0;
    std::vector<std::uint32_t> words;
  };
  /// The position of each 2048th block of a large file, and of its size words.
  struct BlockIndex {
    struct Mark {
      TableReader::Position words;
      std::uint64_t position = 0;
    };
    std::vector<Mark> marks;
    [[nodiscard]] std::size_t cost() const { return marks.capacity() * sizeof(Mark); }
  };

  Result<Directory> load_directory(const Inode& inode);
  Result<BlockIndex> load_index(const Inode& file, std::uint64_t blocks);
  Result<BlockSizes> block_sizes(const Inode& file, std::uint64_t first, std::uint64_t count, std::uint64_t blocks);
  Result<SharedBlock> fragment(std::uint32_t index);
  Result<std::pair<std::string, std::string>> xattr(TableReader& table, std::uint64_t values);

  std::unique_ptr<ImageBytes> image_;
  Cache<Directory> directories_;
  Cache<BlockIndex> indexes_{4 << 20};
};

}  // namespace spc::fuse
