#pragma once

#include <zstd.h>

#include <cstddef>
#include <memory>
#include <span>

#include "image/verify/layer_bytes.hpp"

namespace spc::verify {

/// Looks at the headers of a frame that takes `size` bytes of `layer` from `place` on: how much it unpacks to. Accepts only
/// what our writer makes: one frame, the size of its content in the shortest form, a window of that size, no
/// dictionary, no checksum, blocks to the very end.
Result<std::size_t> check_frame(LayerBytes& layer, std::uint64_t place, std::uint64_t size);

/// Unpacks whole frames.
class FrameReader {
 public:
  FrameReader();

  /// Unpacks the frame, checked as above, into the front of `into`; how many bytes that were. More than there is room
  /// for is refused.
  Result<std::size_t> unpack(std::span<const std::byte> frame, std::span<std::byte> into);

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
};

}  // namespace spc::verify
