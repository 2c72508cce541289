#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "image/fuse/image_file.hpp"

namespace spc::fuse {

/// Where a squashfs has the rest of an inode.
struct SquashfsPlace {
  static constexpr std::uint32_t kNone = ~0U;

  /// A position in a table.
  struct Position {
    std::uint64_t block = 0;   ///< start of the block in the image
    std::uint32_t offset = 0;  ///< in its decompressed bytes
  };

  Position details;  ///< a file's block sizes, or a link's target
  std::uint64_t first_block = 0;
  std::uint32_t fragment = kNone;
  std::uint32_t fragment_offset = 0;
  Position listing;
  std::uint32_t listing_bytes = 0;
  std::uint32_t xattrs = kNone;
};

/// Where an EROFS image has the rest of an inode.
struct ErofsPlace {
  std::uint64_t attributes = 0;  ///< position in the image
  std::uint64_t behind = 0;      ///< what follows the attributes
  std::uint32_t start = 0;       ///< first block of the content, or what else its layout says
  std::uint16_t layout = 0;
};

struct Inode {
  std::uint64_t reference = 0;  ///< its name in directories; hard links share it
  std::uint64_t number = 0;     ///< unique in the image
  mode_t mode = 0;              ///< type and permissions, without setuid and setgid
  std::uint32_t links = 0;
  std::uint32_t mtime = 0;
  std::uint64_t size = 0;    ///< of a file's content or a link's target
  std::uint32_t device = 0;  ///< as in the image; 0 is 0:0
  bool has_xattrs = false;
  std::variant<SquashfsPlace, ErofsPlace> place;  ///< for the reader that made it
};

/// A directory's entries without "." and "..", sorted by name, without duplicates.
struct Directory {
  struct Entry {
    std::uint64_t reference = 0;
    std::uint64_t number = 0;
    std::uint32_t name_at = 0;
    std::uint16_t type = 0;  ///< S_IFDIR, …
    std::uint8_t name_bytes = 0;
  };
  std::string names;
  std::vector<Entry> entries;

  [[nodiscard]] std::string_view name(const Entry& entry) const {
    return std::string_view(names).substr(entry.name_at, entry.name_bytes);
  }
  /// nullptr: no such entry.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  [[nodiscard]] std::size_t cost() const {
    return names.capacity() + entries.capacity() * sizeof(Entry);
  }

  /// Once all entries are there: sorts them. An error if two have one name.
  Result<void> sort();
};

/// A part of a file's content.
struct Piece {
  SharedBlock block;  ///< empty: zeros
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// What an image says about itself.
struct ImageSummary {
  std::uint64_t root = 0;  ///< reference
  std::uint64_t bytes = 0;
  std::uint64_t inodes = 0;
  std::uint32_t block_size = 0;  ///< of file content, in bytes
  bool has_xattrs = true;        ///< false: nothing in it has any
};

/// A defensive reader of an image: no position or size from the image is used before it is checked
/// against the actual bounds, and an error affects only that read. Thread-safe.
///
/// Device nodes other than 0:0, overlayfs's whiteout, are hidden.
class ImageReader {
 public:
  explicit ImageReader(const ImageSummary& summary) : summary_(summary) {}
  virtual ~ImageReader() = default;
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;

  [[nodiscard]] const ImageSummary& summary() const { return summary_; }
  /// Empty: a device node.
  virtual Result<std::optional<Inode>> inode(std::uint64_t reference) = 0;
  virtual Result<std::shared_ptr<const Directory>> directory(const Inode& inode) = 0;
  virtual Result<std::string> link_target(const Inode& inode) = 0;
  /// At most `size` bytes; less only at the end of the file.
  virtual Result<std::vector<Piece>> read(const Inode& file, std::uint64_t start,
                                          std::size_t size) = 0;
  /// Full names and values.
  virtual Result<std::vector<std::pair<std::string, std::string>>> xattrs(const Inode& inode) = 0;
  /// Bytes of metadata that have been read and unpacked so far: a measure of the time that took.
  [[nodiscard]] virtual std::uint64_t metadata_loaded() const { return 0; }

 private:
  const ImageSummary summary_;
};

/// Whose EROFS images are read: as the layer writer makes them, or what mkfs.erofs makes without
/// compression as well. Of users' images nothing says in which order directories lie: one may be in
/// itself.
enum class ErofsForm { of_the_store, of_users };

/// The image that starts at `offset` of a file of this `size`: an EROFS image or a squashfs. The
/// caller owns the descriptor.
Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset, std::uint64_t size,
                                                Unpacker unpacker, const CacheLimits& limits,
                                                ErofsForm form = ErofsForm::of_the_store);
/// The same, or an ext2, ext3 or ext4 file system, whoever made it and however it is compressed:
/// for `fuse`.
Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset);

// What readers of all formats keep to.

inline constexpr std::uint32_t kMaxName = 255;          // NAME_MAX; the formats have room for more
inline constexpr std::uint32_t kMaxListing = 64 << 20;  // about two million entries
inline constexpr std::uint32_t kMaxTarget = 4095;       // PATH_MAX without the NUL
inline constexpr std::uint32_t kMaxXattrs = 4096;
inline constexpr std::size_t kMaxXattrTotal =
    16 << 20;  // bytes of one inode's; the converter takes 8 MiB
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 62U;
inline constexpr mode_t kKeptMode = S_ISVTX | 0777;

/// Whether a directory may have an entry of this name, which is not empty.
bool is_entry_name(std::string_view name);

inline bool is_device(mode_t mode) { return S_ISCHR(mode) || S_ISBLK(mode); }

}  // namespace spc::fuse
