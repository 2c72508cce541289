#pragma once

#include <ext2fs/ext2fs.h>
#undef clamp  // a macro of e2fsprogs 1.47.2; <algorithm> has a function of that name

#include <mutex>

#include "image/fuse/cache.hpp"
#include "image/fuse/image_reader.hpp"

namespace spc::fuse {

/// `head`: an image's first bytes, kExtHeadBytes of them.
inline constexpr std::size_t kExtHeadBytes = 2048;
bool looks_like_ext(std::span<const std::byte> head);

/// Reads ext2, ext3 and ext4 file systems of users with libext2fs, which sees the image through
/// ImageFile only. That library has no locks: one thread at a time looks up where content lies, and
/// reads it without the others' waiting.
///
/// References and numbers of inodes are those of the file system.
class ExtReader final : public ImageReader {
 public:
  static Result<std::unique_ptr<ImageReader>> open(const ImageFile& image,
                                                   const CacheLimits& limits);

  Result<std::optional<Inode>> inode(std::uint64_t reference) override;
  Result<std::shared_ptr<const Directory>> directory(const Inode& inode) override;
  Result<std::string> link_target(const Inode& inode) override;
  Result<std::vector<Piece>> read(const Inode& file, std::uint64_t start,
                                  std::size_t size) override;
  Result<std::vector<std::pair<std::string, std::string>>> xattrs(const Inode& inode) override;

 private:
  /// Where a part of a file's content lies in the image; what is in none is zero.
  struct Run {
    std::uint64_t position = 0;
    std::size_t at = 0, size = 0;
  };
  struct FreeFileSystem {
    void operator()(struct_ext2_filsys* system) const;
  };
  using FileSystem = std::unique_ptr<struct_ext2_filsys, FreeFileSystem>;

  ExtReader(const ImageFile& image, const ImageSummary& summary, std::size_t cache)
      : ImageReader(summary), image_(image), directories_(cache) {}

  Result<void> open_system();
  Result<ext2_inode_large> raw_inode(std::uint64_t reference);
  Result<Block> content(std::uint64_t reference, std::uint64_t start, std::size_t size);
  Result<std::vector<Run>> runs(ext2_ino_t number, ext2_inode_large& raw, std::uint64_t start,
                                std::size_t size);
  Result<std::string> inline_content(ext2_ino_t number, ext2_inode_large& raw);
  Result<Directory> load_directory(const Inode& inode);
  Result<void> add_entries(std::span<const std::byte> block, Directory& directory);

  const ImageFile image_;
  struct_io_channel channel_{};
  std::mutex one_at_a_time_;
  FileSystem system_;
  Cache<Directory> directories_;
};

}  // namespace spc::fuse
