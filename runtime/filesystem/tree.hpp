#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "base/format.hpp"
#include "base/result.hpp"

namespace spc {

// --- tar entry ---

struct Xattr {
  std::string name;
  std::string value;
};

/// A data range of a sparse file.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// An entry of the archive, with its extended headers applied.
struct TarEntry {
  enum class Kind { file, hard_link, symlink, device, directory, fifo };
  Kind kind = Kind::file;
  std::string path;    ///< as written: any bytes but NUL
  std::string target;  ///< of links
  std::uint16_t mode = 0;
  std::uint32_t mtime = 0;   ///< whole seconds, clamped to the range of squashfs
  std::uint64_t size = 0;    ///< size of the file, including holes
  std::uint64_t stored = 0;  ///< bytes of data that follow in the archive
  bool sparse = false;
  /// of a sparse file: ascending, disjoint, within size, `stored` bytes in total
  std::vector<Extent> extents;
  std::vector<Xattr> xattrs;
};

// --- budget ---

/// Limits of one layer's conversion: bytes kept in memory, steps through directories and links,
/// bytes of files. The limits of bytes and steps grow with the archive, so a small archive cannot
/// cause much work, alone or with the layers below.
class Budget {
 public:
  explicit Budget(std::uint64_t file_bytes = std::numeric_limits<std::uint64_t>::max())
      : file_bytes_(file_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// Sets the number of bytes read so far of the uncompressed archive and of the blob.
  void set_size(std::uint64_t archive, std::uint64_t blob) {
    archive_ = archive;
    blob_ = blob;
  }

  /// Counts memory that is kept until the layer is written.
  Result<void> keep(std::uint64_t bytes) {
    kept_ += bytes;
    if (kept_ <= kFreeBytes || kept_ <= most_bytes()) return {};
    return Error(
               ErrorKind::refused,
               formatted(
                   "its names, links and attributes need more than {} MiB of memory, as much as an "
                   "archive of this size may take",
                   most_bytes() >> 20U))
        .hint("split the layer");
  }
  /// Counts a step: into a directory, or over a name of a link's target. A step takes about 0.1
  /// microseconds.
  Result<void> walk(std::uint64_t steps = 1) {
    walked_ += steps;
    if (walked_ <= kFreeSteps || walked_ <= most_steps()) return {};
    return Error(ErrorKind::refused, formatted("its paths and links lead over more than {} steps, "
                                               "as many as an archive of this "
                                               "size may take",
                                               most_steps()))
        .hint("split the layer, or use shorter links");
  }
  /// Counts bytes of a file, including holes.
  Result<void> fill(std::uint64_t bytes) {
    if (bytes > file_bytes_ - filled_) {
      return Error(ErrorKind::refused, formatted("files of more than {} bytes", file_bytes_))
          .hint("holes of sparse files count: make such files shorter");
    }
    filled_ += bytes;
    return {};
  }

  /// Memory that is returned to the budget when this object is destroyed.
  class Loan {
   public:
    Loan() = default;
    Loan(Loan&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Loan& operator=(Loan other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Loan() {
      if (budget_ != nullptr) budget_->kept_ -= bytes_;
    }

   private:
    friend class Budget;
    Loan(Budget* budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
    Budget* budget_ = nullptr;
    std::uint64_t bytes_ = 0;
  };
  Result<Loan> lend(std::uint64_t bytes) {
    SPC_TRY(keep(bytes));
    return Loan(this, bytes);
  }

 private:
  static constexpr std::uint64_t kFreeBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1280} << 20;  ///< 4,000,000 entries
  static constexpr std::uint64_t kBytesOfBlob = 64;  ///< bytes per byte of the blob
  static constexpr std::uint64_t kFreeSteps = 32'000'000;
  static constexpr std::uint64_t kStepsOfBlob = 16;

  [[nodiscard]] std::uint64_t most_bytes() const {
    return std::min(kMostBytes, kFreeBytes + std::min(archive_, kBytesOfBlob * blob_));
  }
  [[nodiscard]] std::uint64_t most_steps() const {
    return kFreeSteps + std::min(archive_ / 2, kStepsOfBlob * blob_);
  }

  std::uint64_t archive_ = 0;
  std::uint64_t blob_ = 0;
  std::uint64_t kept_ = 0;
  std::uint64_t walked_ = 0;
  std::uint64_t filled_ = 0;
  const std::uint64_t file_bytes_;
};

// --- tree ---

struct Inode;

/// A directory: its entries, sorted by bytes as in squashfs. Hard links are entries with the same
/// inode.
using Directory = std::map<std::string, std::shared_ptr<Inode>, std::less<>>;

/// Location of a file's data in the image, set by the data writer as it assigns positions.
struct FileData {
  static constexpr std::uint32_t kNoFragment = 0xffffffff;
  static constexpr std::uint32_t kAsIs = 1U << 24U;  ///< flag in a block's size: not compressed
  std::uint64_t size = 0;
  std::uint64_t start = 0;  ///< position of the first block
  std::uint64_t holes = 0;  ///< bytes not stored because a whole block is zero
  std::uint32_t fragment = kNoFragment;
  std::uint32_t fragment_offset = 0;
  /// stored size of each: squashfs in bytes, erofs in blocks of 4 KiB; 0: a hole
  std::vector<std::uint32_t> blocks;
};

struct Whiteout {};
struct Fifo {};
struct Symlink {
  std::string target;
};
/// A hard link to a file that is not in this layer and must be in a layer below (convert/fit.hpp).
struct LinkBelow {
  std::string target;
};

struct Inode {
  static constexpr std::uint64_t kNotWritten = ~std::uint64_t{0};

  std::variant<Directory, FileData, Symlink, Fifo, Whiteout, LinkBelow> content;
  std::uint16_t mode = 0;  ///< permissions and the sticky bit
  bool opaque = false;     ///< directories: hides the content of lower layers
  /// directories: the archive has entries in it but none for it, so it has the attributes of the
  /// directory below
  bool implied = false;
  std::uint32_t mtime = 0;
  std::unique_ptr<std::vector<Xattr>> xattrs;

  /// directories: the meaning of the directory or its entries depends on the layers below
  /// (convert/fit.hpp)
  bool unsettled = false;

  // Fields for the data and table writers:
  std::uint32_t links = 0;
  std::uint32_t number = 0;
  std::uint64_t reference = kNotWritten;
};

/// The layer's tree in memory, as if the tar were extracted into an empty root: the last entry of a
/// name wins, and links in a path are followed as on extraction. No file is ever opened or created
/// on the host.
///
/// Entries that depend on the layers below (a directory without an entry of its own, a hard link to
/// a file that is not in the layer) are marked for convert/fit.hpp.
class Tree {
 public:
  /// Without `has_below`, a hard link to a file that is not in the layer is refused. `budget` is
  /// borrowed.
  explicit Tree(Budget& budget, bool has_below = false);

  /// Adds one entry. Whiteouts (`.wh.NAME`, `.wh..wh..opq`) become overlayfs whiteouts; other
  /// `.wh..wh.*` names, device nodes and hard links to these are dropped. A root that its owner
  /// could not enter or read gets the owner's permissions. Returns the inode of a file whose data
  /// follows, otherwise null.
  Result<std::shared_ptr<Inode>> add(TarEntry& entry);

  /// Ends the input. Removes directories whose names begin with `.wh.` and their content: AUFS
  /// stored hard-linked files there.
  void finish();
  [[nodiscard]] Inode& root() { return *root_; }
  [[nodiscard]] std::uint64_t dropped_devices() const { return dropped_devices_; }
  [[nodiscard]] std::uint64_t dropped_xattrs() const { return dropped_xattrs_; }

 private:
  using Parts = std::vector<std::string_view>;

  Result<Inode*> enter(const Parts& directories);
  Result<std::shared_ptr<Inode>> find(std::string_view path);
  Result<bool> drop_device(const TarEntry& entry, const Parts& parts);
  Result<void> add_root(TarEntry& entry);
  Result<void> set_attributes(Inode& inode, TarEntry& entry);

  Budget& budget_;
  std::shared_ptr<Inode> root_;
  bool has_below_;
  bool has_reserved_ = false;  // an entry's name begins with `.wh.`
  /// device nodes and hard links to them, until another entry has their name
  std::unordered_set<std::string> dropped_;
  std::uint64_t dropped_devices_ = 0;
  std::uint64_t dropped_xattrs_ = 0;
};

// Rules for names, shared with the code that fits a layer to the layers below.

/// Limit of directory levels: longer paths cannot be opened, and the table writers recurse.
inline constexpr std::size_t kMaxDepth = 2048;
inline constexpr unsigned kMaxLinks = 40;  ///< the kernel's limit
/// Limit of one file's attributes. The kernel lists 64 KiB of names, so most files cannot have as
/// many. The readers of layers accept no more.
inline constexpr std::size_t kMaxAttributes = 4096;

/// Memory of an entry, without the parts that Budget counts separately: its inode, its directory
/// entry, and malloc's overhead.
inline constexpr std::uint64_t kEntryBytes = sizeof(Inode) + 128;
inline std::uint64_t bytes_of(const Xattr& xattr) {
  return 2 * (sizeof xattr + 32 + xattr.name.size() + xattr.value.size());
}

std::shared_ptr<Inode> new_directory();
/// Adds a whiteout. It hides entries of lower layers and keeps an entry of this layer, whichever
/// comes first.
void add_whiteout(Directory& directory, std::string_view name, std::uint32_t mtime);
/// Returns the path's parts without `.` and with `..` resolved by name. Absolute paths are also
/// inside the image.
Result<std::vector<std::string_view>> split_path(std::string_view path);
/// Prepends a link's target to the remaining parts, which are stored in reverse.
void push_target(std::vector<std::string_view>& ahead, std::string_view target);
/// Returns whether to keep the attribute. Only user.* attributes may come from an image: others
/// grant privileges or control overlayfs.
bool is_kept(const Xattr& xattr);

}  // namespace spc
