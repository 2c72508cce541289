#pragma once

#include <cstdint>

#include "image/layer/data_writer.hpp"

namespace spc {

/// Where the first data block lies: behind the super block and the compressor's options.
Result<std::uint64_t> begin_squashfs(int output);

/// Writes everything but the data: inodes, directories, fragments, attributes and at last the super block. All owners
/// are 0:0 and the image bears no date, so that the same tree gives the same bytes.
Result<void> write_squashfs_tables(int output, std::uint64_t data_end, Inode& root,
                                   const std::vector<DataWriter::Fragment>& fragments);

}  // namespace spc
