#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/result.hpp"

namespace spc::fuse {

/// Decompressed bytes of one block.
struct Block {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  std::uint64_t next = 0;  ///< a squashfs's metadata only: start of the next block in the image

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

/// Compressors have the numbers of squashfs.
inline constexpr std::uint16_t kLz4Compressor = 5;

/// Decompression, by number of the compressor: `fuse` reads whatever users have, layers of the
/// store have one.
struct Unpacker {
  bool (*knows)(std::uint16_t compressor);
  /// `size`: room behind `into`, then what was written. False: damaged.
  bool (*unpack)(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into,
                 std::size_t& size);
};

/// At most so many bytes are kept.
struct CacheLimits {
  std::size_t blocks = 48 << 20;  ///< a third for metadata
  std::size_t directories = 16 << 20;
};

/// The bytes of an image that begins at `offset` of a file and has `size` bytes there. The caller
/// owns the descriptor.
class ImageFile {
 public:
  ImageFile(int file, std::uint64_t offset, std::uint64_t size)
      : file_(file), offset_(offset), size_(size) {}

  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// The same, of which only the first `size` bytes count.
  [[nodiscard]] ImageFile first(std::uint64_t size) const { return {file_, offset_, size}; }
  /// All of it, or an error.
  Result<void> read(std::uint64_t position, std::span<std::byte> into) const;

 private:
  int file_;
  std::uint64_t offset_;
  std::uint64_t size_;
};

}  // namespace spc::fuse
