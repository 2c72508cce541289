#pragma once

#include "image/fuse/cache.hpp"
#include "image/fuse/image_reader.hpp"

namespace spc::fuse {

inline constexpr std::size_t kErofsHeadBytes = 1024 + 128;

/// `head`: an image's first bytes.
bool looks_like_erofs(std::span<const std::byte> head);

/// Reads EROFS images as the layer writer makes them: blocks of 4 KiB, extended inodes, contents in
/// units of 128 KiB that are plain, holes or compressed with lz4. Of users' images, also those of
/// mkfs.erofs without compression: compact inodes, the end of a file behind its inode, attributes
/// that files share. Others are refused, at once or where they differ.
///
/// References and numbers of inodes are their nids.
class ErofsReader final : public ImageReader {
 public:
  static Result<std::unique_ptr<ImageReader>> open(const ImageFile& image, Unpacker unpacker,
                                                   const CacheLimits& limits, ErofsForm form);

  Result<std::optional<Inode>> inode(std::uint64_t reference) override;
  Result<std::shared_ptr<const Directory>> directory(const Inode& inode) override;
  Result<std::string> link_target(const Inode& inode) override;
  Result<std::vector<Piece>> read(const Inode& file, std::uint64_t start,
                                  std::size_t size) override;
  Result<std::vector<std::pair<std::string, std::string>>> xattrs(const Inode& inode) override;
  [[nodiscard]] std::uint64_t metadata_loaded() const override {
    return metadata_.loaded() + directories_.loaded();
  }

 private:
  /// What the super block says beside the summary.
  struct Super {
    std::uint64_t inodes_at = 0;  ///< position that nids count from
    std::uint64_t shared_at = 0;  ///< of the attributes that files share
    std::uint64_t date = 0;       ///< of compact inodes
    bool of_users = false;
  };

  ErofsReader(const ImageFile& image, const ImageSummary& summary, const Super& super,
              Unpacker unpacker, const CacheLimits& limits)
      : ImageReader(summary),
        image_(image),
        super_(super),
        unpacker_(unpacker),
        metadata_(limits.blocks / 3),
        data_(limits.blocks - limits.blocks / 3),
        directories_(limits.directories) {}

  Result<SharedBlock> metadata_block(std::uint64_t number);
  Result<void> read_metadata(std::uint64_t position, std::span<std::byte> into);
  /// A block of a directory, or all of another inode's content that lies in one block.
  Result<Piece> content(const Inode& inode, std::uint64_t block);
  Result<std::pair<std::string, std::string>> attribute(std::uint64_t& position, std::uint64_t end);
  Result<Directory> load_directory(const Inode& inode);
  Result<void> add_entries(std::span<const std::byte> block, const Inode& inode,
                           Directory& directory);
  /// The bytes of a file's unit, of which there are `size`; empty: zeros.
  Result<SharedBlock> unit(const ErofsPlace& place, std::uint64_t index, std::size_t size);
  Result<SharedBlock> compressed_unit(const ErofsPlace& place, std::uint64_t index,
                                      std::size_t size);
  Result<SharedBlock> stored(std::uint64_t first_block, std::size_t size);
  Result<SharedBlock> unpacked(std::uint64_t first_block, std::size_t blocks, std::size_t size);

  const ImageFile image_;
  const Super super_;
  const Unpacker unpacker_;
  Cache<Block> metadata_;  // by number of the block
  Cache<Block> data_;      // by position of the first block, and how many are compressed
  Cache<Directory> directories_;
};

}  // namespace spc::fuse
