#include "image/verify/erofs/window.hpp"

#include <algorithm>

namespace spc::verify::erofs {
namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{128} << 10U;

}  // namespace

bool Window::within(std::uint64_t offset, std::uint64_t size) const {
  return offset <= layer_.size() && size <= layer_.size() - offset;
}

bool Window::keeps(std::uint64_t offset, std::uint64_t size) const {
  return offset >= begin_ && offset - begin_ <= bytes_.size() &&
         size <= bytes_.size() - (offset - begin_);
}

Result<std::span<const std::byte>> Window::at(std::uint64_t offset, std::uint64_t size) {
  if (!within(offset, size)) return refused("it extends beyond the end of the image");
  if (!keeps(offset, size)) {
    begin_ = offset / kBlock * kBlock;
    bytes_.resize(std::min(std::max(kWindowBytes, offset - begin_ + size), layer_.size() - begin_));
    SPC_TRY(layer_.read(begin_, bytes_));
  }
  return std::span<const std::byte>(bytes_).subspan(offset - begin_, size);
}

Result<void> Window::copy(std::uint64_t offset, std::span<std::byte> into) {
  if (!within(offset, into.size())) return refused("it extends beyond the end of the image");
  if (!keeps(offset, into.size())) return layer_.read(offset, into);
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset - begin_), into.size(),
              into.begin());
  return {};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace spc::verify::erofs
