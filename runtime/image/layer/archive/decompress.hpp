#pragma once

#include <cstdint>

#include "image/layer/archive/piece_queue.hpp"

namespace spc {

/// Reads a blob from `input` to its end and publishes its uncompressed bytes; the content decides
/// between gzip, zstd and plain, not the media type. It is decompressed exactly once. Members and
/// frames may be concatenated; after the last one only zeros are accepted.
Result<void> decompress(int input, PieceQueue& queue, std::uint64_t limit);

}  // namespace spc
