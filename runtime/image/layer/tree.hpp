#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "image/layer/archive/tar_entry.hpp"
#include "image/layer/below/budget.hpp"

namespace spc {

struct Inode;

/// In byte order, as in squashfs. Hard links are entries of the same inode.
using Directory = std::map<std::string, std::shared_ptr<Inode>, std::less<>>;

/// Location of a file's data in the image; the data writer sets it as blocks are placed.
struct FileData {
  static constexpr std::uint32_t kNoFragment = 0xffffffff;
  static constexpr std::uint32_t kAsIs = 1U << 24U;  ///< with a block's size: it is not compressed
  std::uint64_t size = 0;
  std::uint64_t start = 0;  ///< of the first block
  std::uint64_t holes = 0;  ///< bytes not stored because a whole block is zero
  std::uint32_t fragment = kNoFragment;
  std::uint32_t fragment_offset = 0;
  std::vector<std::uint32_t>
      blocks;  ///< stored size of each: squashfs in bytes, erofs in blocks of 4 KiB; 0: a hole
};

struct Whiteout {};
struct Fifo {};
struct Symlink {
  std::string target;
};
/// A hard link to what this layer does not have: it must lie in a layer below (fit.hpp).
struct LinkBelow {
  std::string target;
};

struct Inode {
  static constexpr std::uint64_t kNotWritten = ~std::uint64_t{0};

  std::variant<Directory, FileData, Symlink, Fifo, Whiteout, LinkBelow> content;
  std::uint16_t mode = 0;  ///< permissions and the sticky bit
  bool opaque = false;     ///< directories: hides the content of lower layers
  bool implied =
      false;  ///< directories: only entries in it are in the archive, so it is what lies below
  std::uint32_t mtime = 0;
  std::unique_ptr<std::vector<Xattr>> xattrs;

  bool unsettled = false;  ///< directories: they or what is in them mean another thing above other
                           ///< layers (fit.hpp)

  // For the writers of data and tables:
  std::uint32_t links = 0;
  std::uint32_t number = 0;
  std::uint64_t reference = kNotWritten;
};

/// The layer's tree in memory, as extracting the tar into an empty root would leave it: the last
/// entry of a name wins, and links in a path are followed as there. Nothing is ever opened or
/// created on the host.
///
/// What a layer leaves to those below it (a directory without an entry of its own, a hard link to a
/// file that is not in the layer) is marked, for fit.hpp.
class Tree {
 public:
  /// `has_below`: otherwise a hard link to what is not in the layer is refused. `budget` is
  /// borrowed.
  explicit Tree(Budget& budget, bool has_below = false);

  /// Adds one entry. Whiteouts (`.wh.NAME`, `.wh..wh..opq`) become overlayfs whiteouts; other
  /// `.wh..wh.*` names, device nodes and hard links to these are dropped. A root that its owner
  /// could not enter or read gets the owner's permissions. Returns the inode of a file whose data
  /// comes next; otherwise null.
  Result<std::shared_ptr<Inode>> add(TarEntry& entry);

  /// There are no more entries. Directories whose names begin with `.wh.` go, with all in them:
  /// AUFS kept what has hard links there.
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
  bool has_reserved_ = false;  // names
  std::unordered_set<std::string>
      dropped_;  ///< device nodes and hard links to them, as long as nothing has their name
  std::uint64_t dropped_devices_ = 0;
  std::uint64_t dropped_xattrs_ = 0;
};

/// Rules for names, shared with what fits a layer to those below.
inline constexpr std::size_t kMaxDepth =
    2048;  ///< no longer path can be opened; the writer of the tables recurses
inline constexpr unsigned kMaxLinks = 40;  ///< as the kernel
/// Of one file. The kernel lists 64 KiB of names, so most files could not have as many; readers of
/// layers take no more.
inline constexpr std::size_t kMaxAttributes = 4096;

/// Memory that an entry takes, without what Budget is told apart: its inode, its place in a
/// directory, what malloc adds.
inline constexpr std::uint64_t kEntryBytes = sizeof(Inode) + 128;
inline std::uint64_t bytes_of(const Xattr& xattr) {
  return 2 * (sizeof xattr + 32 + xattr.name.size() + xattr.value.size());
}

std::shared_ptr<Inode> new_directory();
/// A whiteout hides what lower layers have; what this layer has stays, wherever the whiteout comes.
void add_whiteout(Directory& directory, std::string_view name, std::uint32_t mtime);
/// The path's parts without `.` and with `..` resolved by name. Absolute paths are inside the image
/// too.
Result<std::vector<std::string_view>> split_path(std::string_view path);
/// Puts a link's target in front of what is left to walk, which is kept in reverse.
void push_target(std::vector<std::string_view>& ahead, std::string_view target);
/// Only a user's own attributes may come from an image: the rest gives privilege or steers
/// overlayfs.
bool is_kept(const Xattr& xattr);

}  // namespace spc
