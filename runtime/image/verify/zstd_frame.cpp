#include "image/verify/zstd_frame.hpp"

#include <algorithm>
#include <array>
#include <new>

namespace spc::verify {
namespace {

constexpr std::uint32_t kMagic = 0xfd2fb528;
constexpr std::size_t kBlockHeader = 3;
/// Newer versions of zstd split what they compress into parts of 8 KiB and more.
constexpr unsigned kMaxBlocks = 32;

struct Header {
  std::size_t content = 0;  ///< bytes that the frame unpacks to
  std::size_t size = 0;     ///< of the header itself
};

/// RFC 8878, 3.1.1.1, with everything but the content's size given.
Result<Header> read_header(std::span<const std::byte> frame) {
  Fields fields(frame);
  if (fields.take<std::uint32_t>() != kMagic) return refused("a block is not a zstd frame");
  switch (fields.take<std::uint8_t>()) {
    case 0x20: return Header{.content = fields.take<std::uint8_t>(), .size = 6};
    case 0x60: return Header{.content = fields.take<std::uint16_t>() + std::size_t{256}, .size = 7};
    case 0xa0: {
      const std::size_t content = fields.take<std::uint32_t>();
      if (content < 65536 + 256)
        return refused("a zstd frame states its size in a longer form than needed");
      return Header{.content = content, .size = 9};
    }
    default: return refused("a zstd frame has unexpected options");
  }
}

}  // namespace

Result<std::size_t> check_frame(LayerBytes& layer, std::uint64_t place, std::uint64_t size) {
  std::array<std::byte, 9 + kBlockHeader> front{};
  if (size < front.size() - 3) return refused("truncated zstd frame");
  const std::size_t there = std::min<std::size_t>(front.size(), size);
  SPC_TRY(layer.read(place, std::span(front).first(there)));
  const Header header = SPC_TRY(read_header(front));

  std::uint64_t at = header.size;
  for (unsigned i = 0; i < kMaxBlocks; ++i) {
    if (size - at < kBlockHeader) return refused("truncated zstd frame");
    std::array<std::byte, kBlockHeader> bytes{};
    if (i == 0) {
      std::copy_n(front.begin() + static_cast<std::ptrdiff_t>(at), kBlockHeader, bytes.begin());
    } else {
      SPC_TRY(layer.read(place + at, bytes));
    }
    Fields fields(bytes);
    const std::uint32_t block =
        fields.take<std::uint16_t>() | std::uint32_t{fields.take<std::uint8_t>()} << 16U;
    const std::size_t stored =
        (block >> 1U & 3U) == 1 ? 1 : block >> 3U;  // type 1: one byte, repeated
    at += kBlockHeader;
    if (stored > size - at) return refused("truncated zstd frame");
    at += stored;
    if ((block & 1U) == 0) continue;
    if (at != size) return refused("trailing data after a zstd frame");
    return header.content;
  }
  return refused("a zstd frame has too many blocks");
}

FrameReader::FrameReader() : context_(ZSTD_createDCtx()) {
  if (!context_) throw std::bad_alloc();
}

Result<std::size_t> FrameReader::unpack(std::span<const std::byte> frame,
                                        std::span<std::byte> into) {
  SpanBytes bytes(frame);
  const std::size_t content = SPC_TRY(check_frame(bytes, 0, frame.size()));
  if (content > into.size()) return refused("a block decompresses to more than its limit");
  const std::size_t size =
      ZSTD_decompressDCtx(context_.get(), into.data(), content, frame.data(), frame.size());
  if (ZSTD_isError(size) != 0 || size != content) return refused("a zstd frame is damaged");
  return size;
}

}  // namespace spc::verify
