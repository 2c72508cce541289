#include "image/verify/meta_stream.hpp"

#include <algorithm>

#include "base/format.hpp"

namespace spc::verify {
namespace {
constexpr std::size_t kMetaStoredAsIs = 0x8000;
}

MetaStream::MetaStream(LayerBytes& layer, Codec codec, const char* name, std::uint64_t begin,
                       std::uint64_t end)
    : layer_(layer),
      name_(name),
      begin_(begin),
      end_(end),
      block_(begin),
      next_(begin),
      blocks_(codec),
      buffers_(std::make_unique<Buffers>()) {}

Error MetaStream::bad(const char* what) const { return refused(formatted("{}: {}", name_, what)); }

/// Unpacks the next block.
Result<void> MetaStream::load() {
  if (next_ == end_) return bad("truncated table");
  if (filled_ != 0 && filled_ != kMetaBytes)
    return bad("a metadata block before the last one is not full");
  const std::span stored =
      std::span(buffers_->stored).first(std::min<std::uint64_t>(end_ - next_, kMetaBytes + 2));
  if (stored.size() < 3) return bad("the table ends in the middle of a metadata block");
  SPC_TRY(layer_.read(next_, stored));
  const std::size_t header = Fields(stored).take<std::uint16_t>();
  const std::size_t size = header & ~kMetaStoredAsIs;
  if (size == 0 || size > stored.size() - 2) return bad("wrong size of a metadata block");
  const auto bytes = stored.subspan(2, size);
  if ((header & kMetaStoredAsIs) != 0) {
    std::copy(bytes.begin(), bytes.end(), buffers_->content.begin());
    filled_ = size;
  } else {
    filled_ = SPC_TRY_DURING(name_, blocks_.unpack(bytes, buffers_->content));
    if (size >= filled_) return bad("a metadata block is compressed but not smaller");
  }
  at_ = 0;
  block_ = next_;
  next_ += 2 + size;
  return {};
}

Result<void> MetaStream::read(std::span<std::byte> into) {
  while (!into.empty()) {
    if (at_ == filled_) SPC_TRY(load());
    const std::size_t count = std::min(into.size(), filled_ - at_);
    std::memcpy(into.data(), buffers_->content.data() + at_, count);
    at_ += count;
    into = into.subspan(count);
  }
  return {};
}

Result<void> MetaStream::skip(std::uint64_t count) {
  while (count > 0) {
    if (at_ == filled_) SPC_TRY(load());
    const std::size_t step =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, filled_ - at_));
    at_ += step;
    count -= step;
  }
  return {};
}

MetaStream::Position MetaStream::position() const {
  if (at_ == kMetaBytes || filled_ == 0) return {.block = next_ - begin_, .offset = 0};
  return {.block = block_ - begin_, .offset = static_cast<std::uint32_t>(at_)};
}

Result<void> MetaStream::expect_end() const {
  if (!at_end()) return bad("trailing data after the last entry");
  return {};
}

}  // namespace spc::verify
