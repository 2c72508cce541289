#pragma once

#include <vector>

#include "image/verify/input/layer_bytes.hpp"

namespace spc::verify::erofs {

inline constexpr std::uint64_t kBlock = 4096;

/// How many blocks so many bytes take, or how many `piece`s.
constexpr std::uint64_t pieces(std::uint64_t bytes, std::uint64_t piece = kBlock) {
  return bytes / piece + (bytes % piece == 0 ? 0 : 1);
}

/// The image's bytes, a piece of which is kept: reading forward takes few calls.
class Window {
 public:
  explicit Window(LayerBytes& layer) : layer_(layer) {}

  /// These bytes, valid until the next call; refused if some are beyond the image's end.
  Result<std::span<const std::byte>> at(std::uint64_t offset, std::uint64_t size);
  /// The same, without keeping more.
  Result<void> copy(std::uint64_t offset, std::span<std::byte> into);
  [[nodiscard]] std::uint64_t size() const { return layer_.size(); }

 private:
  [[nodiscard]] bool within(std::uint64_t offset, std::uint64_t size) const;
  [[nodiscard]] bool keeps(std::uint64_t offset, std::uint64_t size) const;

  LayerBytes& layer_;
  std::vector<std::byte> bytes_;
  std::uint64_t begin_ = 0;
};

/// The little-endian number at `at`, which lies within the bytes.
template <std::unsigned_integral Number>
Number number(std::span<const std::byte> bytes, std::size_t at) {
  return Fields(bytes.subspan(at)).take<Number>();
}

bool all_zero(std::span<const std::byte> bytes);

}  // namespace spc::verify::erofs
