#pragma once

#include "image/fuse/image_bytes.hpp"

namespace spc::fuse {

/// Reads squashfs files of users and of the store.
class SquashfsReader final : public ImageReader {
 public:
  /// `cache`: bytes of directories kept.
  SquashfsReader(std::unique_ptr<ImageBytes> image, std::size_t cache);

  Result<std::optional<Inode>> inode(std::uint64_t reference) override;
  Result<std::shared_ptr<const Directory>> directory(const Inode& inode) override;
  Result<std::string> link_target(const Inode& inode) override;
  Result<std::vector<Piece>> read(const Inode& file, std::uint64_t start,
                                  std::size_t size) override;
  Result<std::vector<std::pair<std::string, std::string>>> xattrs(const Inode& inode) override;
  [[nodiscard]] std::uint64_t metadata_loaded() const override {
    return image_->metadata_loaded() + directories_.loaded();
  }

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
  Result<BlockSizes> block_sizes(const Inode& file, std::uint64_t first, std::uint64_t count,
                                 std::uint64_t blocks);
  Result<SharedBlock> fragment(std::uint32_t index);
  Result<std::pair<std::string, std::string>> xattr(TableReader& table, std::uint64_t values);

  std::unique_ptr<ImageBytes> image_;
  Cache<Directory> directories_;
  Cache<BlockIndex> indexes_{4 << 20};
};

}  // namespace spc::fuse
