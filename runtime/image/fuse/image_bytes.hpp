#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "image/fuse/cache.hpp"
#include "image/reference/squashfs_super.hpp"

namespace spc::fuse {

/// Decompressed bytes of one block.
struct Block {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  std::uint64_t next = 0;  ///< metadata only: start of the next block in the image

  [[nodiscard]] std::size_t cost() const { return size; }
};
using SharedBlock = std::shared_ptr<const Block>;

/// A number in the image, which is little-endian like this machine.
template <typename Number>
Number number_at(std::span<const std::byte> bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

/// The image violates the format. Readers get EIO.
inline Error damaged(const char* what) { return Error(ErrorKind::corrupt, what); }

/// Decompression, by number of the compressor: `fuse` reads whatever users have, layers of the store have one.
struct Unpacker {
  bool (*knows)(std::uint16_t compressor);
  /// `size`: room behind `into`, then what was written. False: damaged.
  bool (*unpack)(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into, std::size_t& size);
};

/// The blocks of one image. Thread-safe. The caller owns the descriptor.
class ImageBytes {
 public:
  /// The squashfs that starts at `offset` of the file, however it is compressed.
  static Result<std::unique_ptr<ImageBytes>> open(int file, std::uint64_t offset);
  /// The same for a file of this `size`; at most `cache` bytes of blocks are kept.
  static Result<std::unique_ptr<ImageBytes>> open(int file, std::uint64_t offset, std::uint64_t size, Unpacker unpacker,
                                                  std::size_t cache);

  [[nodiscard]] const SquashfsSuper& super() const { return super_; }

  /// Raw bytes of the image.
  Result<void> read(std::uint64_t position, std::span<std::byte> into) const;
  /// A block of a table: at most 8 KiB, never empty.
  Result<SharedBlock> metadata(std::uint64_t position);
  /// A block of file content, with the size word stated for it by the file or fragment table. Never empty.
  Result<SharedBlock> data(std::uint64_t position, std::uint32_t size_word);

 private:
  ImageBytes(int file, std::uint64_t offset, const SquashfsSuper& super, Unpacker unpacker, std::size_t cache)
      : file_(file), offset_(offset), super_(super), unpacker_(unpacker), metadata_(cache / 3), data_(cache - cache / 3) {}
  Result<Block> load(std::uint64_t position, std::size_t stored, bool compressed, std::size_t limit) const;

  static constexpr std::size_t kCache = 48 << 20;  // a third for metadata

  const int file_;
  const std::uint64_t offset_;
  const SquashfsSuper super_;
  const Unpacker unpacker_;
  Cache<Block> metadata_;
  Cache<Block> data_;
};

/// Reads on from a position in a table, across blocks.
class TableReader {
 public:
  struct Position {
    std::uint64_t block = 0;   ///< start of the block in the image
    std::uint32_t offset = 0;  ///< in its decompressed bytes
  };

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
