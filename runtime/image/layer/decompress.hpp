#pragma once

#include <cstdint>

#include "image/layer/piece_queue.hpp"

namespace spc {

/// Reads a blob from `input` to its end and publishes its uncompressed bytes; the content decides whether it is gzip,
/// zstd or plain, not the label that came with it. It is decompressed exactly once. Members and frames may follow each
/// other; behind the last one only zeros are accepted.
Result<void> decompress(int input, PieceQueue& queue, std::uint64_t limit);

}  // namespace spc
