#include "image/fuse/image_bytes.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "base/format.hpp"

namespace spc::fuse {
namespace {

constexpr std::size_t kMetadataBytes = 8192;
constexpr std::uint16_t kMetadataPlain = 1U << 15U;
constexpr std::uint32_t kBlockPlain = 1U << 24U;

}  // namespace

Result<std::unique_ptr<ImageBytes>> ImageBytes::open(const ImageFile& image, Unpacker unpacker,
                                                     std::size_t cache) {
  std::array<std::byte, SquashfsSuper::kBytes> head{};
  const auto there = std::span(head).first(
      static_cast<std::size_t>(std::min<std::uint64_t>(image.size(), head.size())));
  SPC_TRY(image.read(0, there));
  const auto super = SPC_TRY(parse_squashfs_super(there, image.size()));
  if (!unpacker.knows(super.compressor)) {
    return Error(ErrorKind::invalid,
                 formatted("the squashfs is compressed with {}, which this build does not support",
                           compressor_name(super.compressor)))
        .hint("recreate it with mksquashfs -comp zstd");
  }
  return std::unique_ptr<ImageBytes>(
      new ImageBytes(image.first(super.bytes_used), super, unpacker, cache));
}

Result<Block> ImageBytes::load(std::uint64_t position, std::size_t stored, bool compressed,
                               std::size_t limit) const {
  Block block;
  if (stored == 0 || stored > limit) return damaged("an invalid block size");
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(stored);
  SPC_TRY(read(position, {bytes.get(), stored}));
  if (!compressed) {
    block.bytes = std::move(bytes);
    block.size = stored;
    return block;
  }
  block.bytes = std::make_unique_for_overwrite<std::byte[]>(limit);
  block.size = limit;
  if (!unpacker_.unpack(super_.compressor, {bytes.get(), stored}, block.bytes.get(), block.size)) {
    return damaged("a block that cannot be decompressed");
  }
  if (block.size == 0 || block.size > limit) return damaged("an invalid block size");
  return block;
}

Result<SharedBlock> ImageBytes::metadata(std::uint64_t position) {
  return metadata_.get(position, [&]() -> Result<Block> {
    std::uint16_t header = 0;
    SPC_TRY(read(position, std::as_writable_bytes(std::span(&header, 1))));
    const std::size_t stored = header & ~kMetadataPlain;
    auto block = SPC_TRY(
        load(position + sizeof header, stored, (header & kMetadataPlain) == 0, kMetadataBytes));
    block.next = position + sizeof header + stored;
    return block;
  });
}

Result<SharedBlock> ImageBytes::data(std::uint64_t position, std::uint32_t size_word) {
  return data_.get(position, [&]() -> Result<Block> {
    return load(position, size_word & ~kBlockPlain, (size_word & kBlockPlain) == 0,
                super_.block_size);
  });
}

Result<std::span<const std::byte>> TableReader::rest_of_block() {
  if (!block_) block_ = SPC_TRY(image_.metadata(at_.block));
  if (at_.offset == block_->size) {
    at_ = {.block = block_->next, .offset = 0};
    block_ = SPC_TRY(image_.metadata(at_.block));
  }
  if (at_.offset > block_->size) return damaged("a position beyond the end of its block");
  return std::span<const std::byte>(block_->bytes.get(), block_->size).subspan(at_.offset);
}

Result<void> TableReader::read(std::span<std::byte> into) {
  while (!into.empty()) {
    const auto rest = SPC_TRY(rest_of_block());
    const std::size_t count = std::min(rest.size(), into.size());
    std::memcpy(into.data(), rest.data(), count);
    into = into.subspan(count);
    at_.offset += static_cast<std::uint32_t>(count);
  }
  return {};
}

Result<void> TableReader::skip(std::uint64_t count) {
  while (count != 0) {
    const auto rest = SPC_TRY(rest_of_block());
    const auto step = std::min<std::uint64_t>(rest.size(), count);
    count -= step;
    at_.offset += static_cast<std::uint32_t>(step);
  }
  return {};
}

}  // namespace spc::fuse
