#pragma once

#include "image/verify/input/layer_bytes.hpp"
#include "image/verify/zstd_frame.hpp"

namespace spc::verify {

/// How the blocks of an image are compressed, all alike. As the super block numbers it.
enum class Codec : std::uint16_t { lz4 = 5, zstd = 6 };

/// Decompresses whole blocks.
class BlockReader {
 public:
  explicit BlockReader(Codec codec) : codec_(codec) {}

  /// Decompresses the block into the front of `into`; returns the number of bytes. A block that
  /// does not fit is refused, and with zstd a frame that our writer does not generate.
  Result<std::size_t> unpack(std::span<const std::byte> block, std::span<std::byte> into);

 private:
  Codec codec_;
  FrameReader frames_;
};

}  // namespace spc::verify
