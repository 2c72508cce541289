#include "image/verify/block_reader.hpp"

#include <lz4.h>

namespace spc::verify {

Result<std::size_t> BlockReader::unpack(std::span<const std::byte> block,
                                        std::span<std::byte> into) {
  if (codec_ == Codec::zstd) return frames_.unpack(block, into);
  const int size = LZ4_decompress_safe(
      reinterpret_cast<const char*>(block.data()), reinterpret_cast<char*>(into.data()),
      static_cast<int>(block.size()), static_cast<int>(into.size()));
  if (size <= 0) return refused("an lz4 block is damaged, or decompresses to more than its limit");
  return static_cast<std::size_t>(size);
}

}  // namespace spc::verify
