#pragma once

#include <zstd.h>

#include <cstddef>
#include <memory>
#include <span>

#include "image/verify/input/layer_bytes.hpp"

namespace spc::verify {

/// Checks the headers of a frame that takes `size` bytes of `layer` at `place`; returns its
/// decompressed size. Accepts only what our writer generates: one frame, the content size in its
/// shortest form, a window of that size, no dictionary, no checksum, blocks up to the end.
Result<std::size_t> check_frame(LayerBytes& layer, std::uint64_t place, std::uint64_t size);

/// Decompresses whole frames.
class FrameReader {
 public:
  FrameReader();

  /// Decompresses the frame, checked as above, into the front of `into`; returns the number of
  /// bytes. A frame that does not fit is refused.
  Result<std::size_t> unpack(std::span<const std::byte> frame, std::span<std::byte> into);

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
};

}  // namespace spc::verify
