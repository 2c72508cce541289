#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "base/text.hpp"
#include "reference/first_bytes.hpp"

namespace spc::erofs {
enum class Layout : std::uint16_t;
}

namespace spc::fuse {

// --- cache ---

/// Data read from the image, keyed by position. Keeps the most recently used values up to `limit`
/// bytes. Thread-safe: concurrent requests for one key load it once. cost() of a Value is its size
/// in bytes.
template <typename Value>
class Cache {
 public:
  explicit Cache(std::size_t limit) : limit_(limit) {}

  /// Returns the cached value. `load` makes a Result<Value> for a missing key; failures are not
  /// cached.
  template <typename Load>
  Result<std::shared_ptr<const Value>> get(std::uint64_t key, const Load& load) {
    const std::shared_ptr<Slot> slot = slot_for(key);
    const std::lock_guard loading(slot->loading);
    if (!slot->value) {
      auto loaded = load();
      if (!loaded) return std::move(loaded).error();
      slot->value = std::make_shared<const Value>(*std::move(loaded));
      loaded_.fetch_add(slot->value->cost(), std::memory_order_relaxed);
      account(key, slot);
    }
    return slot->value;
  }

  /// Returns the number of bytes loaded so far, including repeated loads.
  [[nodiscard]] std::uint64_t loaded() const { return loaded_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::mutex loading;
    std::shared_ptr<const Value> value;
    std::size_t cost = 0;
    std::uint64_t key = 0;
  };
  using Slots = std::list<std::shared_ptr<Slot>>;  // most recently used first

  std::shared_ptr<Slot> slot_for(std::uint64_t key) {
    const std::lock_guard hold(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      slots_.splice(slots_.begin(), slots_, found->second);
      return slots_.front();
    }
    auto slot = std::make_shared<Slot>();
    slot->key = key;
    slot->cost = kSlotCost;
    slots_.push_front(slot);
    try {
      by_key_[key] = slots_.begin();
    } catch (...) {
      slots_.pop_front();
      throw;
    }
    used_ += kSlotCost;
    shrink();
    return slot;
  }

  void account(std::uint64_t key, const std::shared_ptr<Slot>& slot) {
    const std::lock_guard hold(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end() || *found->second != slot) return;  // evicted meanwhile
    slot->cost += slot->value->cost();
    used_ += slot->value->cost();
    shrink();
  }

  void shrink() {
    while (used_ > limit_ && slots_.size() > 1) {
      used_ -= slots_.back()->cost;
      by_key_.erase(slots_.back()->key);
      slots_.pop_back();
    }
  }

  static constexpr std::size_t kSlotCost = 256;

  const std::size_t limit_;
  std::atomic<std::uint64_t> loaded_ = 0;
  std::mutex mutex_;
  std::size_t used_ = 0;
  Slots slots_;
  std::unordered_map<std::uint64_t, typename Slots::iterator> by_key_;
};

// --- image file ---

/// Decompressed bytes of one block.
struct Block {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  std::uint64_t next = 0;  ///< squashfs metadata only: start of the next block in the image

  [[nodiscard]] std::size_t cost() const { return size; }
};
using SharedBlock = std::shared_ptr<const Block>;

/// Returns the error for an image that violates the format. Programs get EIO.
inline Error damaged(const char* what) { return Error(ErrorKind::corrupt, what); }

/// Compressor numbers are those of squashfs.
inline constexpr std::uint16_t kLz4Compressor = 5;
inline constexpr std::uint16_t kZstdCompressor = 6;

/// Decompression functions, by compressor number. `fuse` supports all compressors of users' images.
/// The layers of the store have one compressor.
struct Unpacker {
  bool (*knows)(std::uint16_t compressor);
  /// `size`: room at `into`, then the decompressed size. Returns false for damaged data.
  bool (*unpack)(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into,
                 std::size_t& size);
};

/// Limits of the caches, in bytes.
struct CacheLimits {
  std::size_t blocks = 48 << 20;  ///< a third of it for metadata
  std::size_t directories = 16 << 20;
};

/// A file that other processes may change. Verifies all bytes that it reads. Thread-safe.
class VerifiedFile {
 public:
  virtual ~VerifiedFile() = default;
  /// Reads exactly into.size() bytes within the file. Error: they are not the expected ones.
  virtual Result<void> read(std::uint64_t position, std::span<std::byte> into) = 0;
};

/// The bytes of an image: `size` bytes at `offset` of a file. The caller owns the descriptor.
class ImageFile {
 public:
  ImageFile(int file, std::uint64_t offset, std::uint64_t size)
      : file_(file), offset_(offset), size_(size) {}
  /// The caller owns `verified`.
  ImageFile(VerifiedFile& verified, std::uint64_t size) : size_(size), verified_(&verified) {}

  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Returns the image limited to its first `size` bytes.
  [[nodiscard]] ImageFile first(std::uint64_t size) const {
    ImageFile image = *this;
    image.size_ = size;
    return image;
  }
  /// Reads exactly into.size() bytes, or returns an error.
  Result<void> read(std::uint64_t position, std::span<std::byte> into) const;

 private:
  int file_ = -1;
  std::uint64_t offset_ = 0;
  std::uint64_t size_;
  VerifiedFile* verified_ = nullptr;
};

// --- image reader ---

/// Location of the rest of an inode in a squashfs.
struct SquashfsPlace {
  static constexpr std::uint32_t kNone = ~0U;

  /// A position in a table.
  struct Position {
    std::uint64_t block = 0;   ///< start of the block in the image
    std::uint32_t offset = 0;  ///< in the decompressed block
  };

  Position details;  ///< a file's block sizes, or a link's target
  std::uint64_t first_block = 0;
  std::uint32_t fragment = kNone;
  std::uint32_t fragment_offset = 0;
  Position listing;
  std::uint32_t listing_bytes = 0;
  std::uint32_t xattrs = kNone;
};

/// Location of the rest of an inode in an EROFS image.
struct ErofsPlace {
  std::uint64_t attributes = 0;  ///< position in the image
  std::uint64_t behind = 0;      ///< position of the data after the attributes
  std::uint32_t start = 0;       ///< first block of the content, or another value by the layout
  erofs::Layout layout{};
};

struct Inode {
  std::uint64_t reference = 0;  ///< identifier in directories, shared by hard links
  std::uint64_t number = 0;     ///< unique in the image
  mode_t mode = 0;              ///< type and permissions, without setuid and setgid
  std::uint32_t links = 0;
  std::uint32_t mtime = 0;
  std::uint64_t size = 0;    ///< of a file's content or a link's target
  std::uint32_t device = 0;  ///< as in the image; 0 means 0:0
  bool has_xattrs = false;
  std::variant<SquashfsPlace, ErofsPlace> place;  ///< for the reader that created it
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
  /// Returns null if there is no such entry.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  [[nodiscard]] std::size_t cost() const {
    return names.capacity() + entries.capacity() * sizeof(Entry);
  }

  /// Adds an entry. Error if the name is not one of an entry.
  Result<void> add(std::string_view name, std::uint64_t reference, std::uint64_t number,
                   mode_t type);
  /// Sorts the entries when all are added. Error if two have the same name.
  Result<void> sort();
};

/// Extended attributes: full names and values.
using Attributes = std::vector<std::pair<std::string, std::string>>;

/// A part of a file's content.
struct Piece {
  SharedBlock block;  ///< empty: zeros
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// Summary of an image's super block.
struct ImageSummary {
  std::uint64_t root = 0;  ///< reference of the root
  std::uint64_t bytes = 0;
  std::uint64_t inodes = 0;
  std::uint32_t block_size = 0;  ///< of file content, in bytes
  bool has_xattrs = true;        ///< false: no inode has attributes
};

/// A defensive reader of an image: checks positions and sizes from the image against the actual
/// bounds before using them. An error affects only that read. Thread-safe.
///
/// Device nodes other than 0:0, overlayfs's whiteout, are hidden.
class ImageReader {
 public:
  ImageReader(const ImageFile& image, const ImageSummary& summary, const CacheLimits& limits,
              Unpacker unpacker = {})
      : image_(image),
        unpacker_(unpacker),
        metadata_(limits.blocks / 3),
        data_(limits.blocks - limits.blocks / 3),
        summary_(summary),
        directories_(limits.directories) {}
  virtual ~ImageReader() = default;
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;

  [[nodiscard]] const ImageSummary& summary() const { return summary_; }
  /// Returns an empty optional for a device node.
  Result<std::optional<Inode>> inode(std::uint64_t reference);
  Result<std::shared_ptr<const Directory>> directory(const Inode& inode);
  Result<std::string> link_target(const Inode& inode);
  /// Returns at most `size` bytes, fewer only at the end of the file.
  Result<std::vector<Piece>> read(const Inode& file, std::uint64_t start, std::size_t size);
  virtual Result<Attributes> xattrs(const Inode& inode) = 0;
  /// Returns the bytes of metadata read and decompressed so far: a measure of CPU time.
  [[nodiscard]] std::uint64_t metadata_loaded() const {
    return metadata_.loaded() + directories_.loaded();
  }

 protected:
  const ImageFile image_;
  const Unpacker unpacker_;
  Cache<Block> metadata_, data_;

 private:
  // The format's part of the functions above. Sizes of files and links are checked afterwards.
  virtual Result<Inode> load_inode(std::uint64_t reference) = 0;
  virtual Result<void> load_directory(const Inode& inode, Directory& directory) = 0;
  virtual Result<std::string> load_target(const Inode& link) = 0;
  /// `start` < `end`, both within the file.
  virtual Result<std::vector<Piece>> load_content(const Inode& file, std::uint64_t start,
                                                  std::uint64_t end) = 0;

  const ImageSummary summary_;
  Cache<Directory> directories_;
};

/// Accepted forms of EROFS images: only those of the layer writer, or also those of mkfs.erofs
/// without compression. In users' images the order of directories is not checked, so a directory
/// may contain itself.
enum class ErofsForm { of_the_store, of_users };

/// Opens an EROFS or squashfs image.
Result<std::unique_ptr<ImageReader>> open_image(const ImageFile& image, Unpacker unpacker,
                                                const CacheLimits& limits,
                                                ErofsForm form = ErofsForm::of_the_store);
/// Opens an image of any writer for `fuse`: a squashfs or EROFS of any supported compression, or an
/// ext2, ext3 or ext4 file system.
Result<std::unique_ptr<ImageReader>> open_image(const ImageFile& image);
/// The same at `offset` of a file. The caller owns the descriptor.
Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset);

// Limits for readers of all formats.

inline constexpr std::uint32_t kMaxName = 255;          // NAME_MAX; the formats allow more
inline constexpr std::uint32_t kMaxListing = 64 << 20;  // about two million entries
inline constexpr std::uint32_t kMaxTarget = 4095;       // PATH_MAX without the NUL
inline constexpr std::uint32_t kMaxXattrs = 4096;
// bytes of one inode's attributes; the converter accepts 8 MiB
inline constexpr std::size_t kMaxXattrTotal = 16 << 20;
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 62U;
inline constexpr mode_t kKeptMode = S_ISVTX | 0777;

inline bool is_device(mode_t mode) { return S_ISCHR(mode) || S_ISBLK(mode); }

// --- formats ---

inline constexpr std::size_t kErofsHeadBytes = 1024 + 144;
/// Returns whether `head`, an image's first bytes, has EROFS's magic.
bool looks_like_erofs(std::span<const std::byte> head);

/// Open an image whose first bytes are `head`, for EROFS at least kErofsHeadBytes.
Result<std::unique_ptr<ImageReader>> open_erofs(const ImageFile& image,
                                                std::span<const std::byte> head, Unpacker unpacker,
                                                const CacheLimits& limits, ErofsForm form);
Result<std::unique_ptr<ImageReader>> open_squashfs(const ImageFile& image,
                                                   std::span<const std::byte> head,
                                                   Unpacker unpacker, const CacheLimits& limits);

}  // namespace spc::fuse
