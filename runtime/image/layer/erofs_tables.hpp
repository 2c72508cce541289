#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "image/layer/tree.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// Position of the first data block: behind that of the super block and the root.
inline constexpr std::uint64_t kErofsDataBegin = 4096;

/// Writes everything but the data and the small files that the data writer has written with their
/// inodes: the other inodes, directories and finally the super block. All owners are 0:0, and the
/// same tree gives the same bytes.
///
/// Kernels from Linux 5.15 on read the image, and map its owners from 5.19 on.
Result<void> write_erofs_tables(int output, std::uint64_t data_end, LayerCompression compression,
                                Inode& root);

}  // namespace spc
