#pragma once

#include "image/fuse/cache.hpp"
#include "image/fuse/image_reader.hpp"
#include "image/reference/squashfs_super.hpp"

namespace spc::fuse {

/// The blocks of one squashfs. Thread-safe.
class ImageBytes {
 public:
  /// At most `cache` bytes of blocks are kept.
  static Result<std::unique_ptr<ImageBytes>> open(const ImageFile& image, Unpacker unpacker,
                                                  std::size_t cache);

  [[nodiscard]] const SquashfsSuper& super() const { return super_; }

  /// Raw bytes of the image.
  Result<void> read(std::uint64_t position, std::span<std::byte> into) const {
    return image_.read(position, into);
  }
  /// A block of a table: at most 8 KiB, never empty.
  Result<SharedBlock> metadata(std::uint64_t position);
  [[nodiscard]] std::uint64_t metadata_loaded() const { return metadata_.loaded(); }
  /// A block of file content, with the size word stated for it by the file or fragment table. Never
  /// empty.
  Result<SharedBlock> data(std::uint64_t position, std::uint32_t size_word);

 private:
  ImageBytes(const ImageFile& image, const SquashfsSuper& super, Unpacker unpacker,
             std::size_t cache)
      : image_(image),
        super_(super),
        unpacker_(unpacker),
        metadata_(cache / 3),
        data_(cache - cache / 3) {}
  Result<Block> load(std::uint64_t position, std::size_t stored, bool compressed,
                     std::size_t limit) const;

  const ImageFile image_;
  const SquashfsSuper super_;
  const Unpacker unpacker_;
  Cache<Block> metadata_;
  Cache<Block> data_;
};

/// Reads on from a position in a table, across blocks.
class TableReader {
 public:
  using Position = SquashfsPlace::Position;

  TableReader(ImageBytes& image, Position position) : image_(image), at_(position) {}

  Result<void> read(std::span<std::byte> into);
  Result<void> skip(std::uint64_t count);
  template <typename Number>
  Result<Number> number() {
    Number number;
    SPC_TRY(read(std::as_writable_bytes(std::span(&number, 1))));
    return number;
  }
  [[nodiscard]] Position position() const { return at_; }

 private:
  Result<std::span<const std::byte>> rest_of_block();

  ImageBytes& image_;
  Position at_;
  SharedBlock block_;
};

}  // namespace spc::fuse
