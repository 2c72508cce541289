#pragma once

#include <cstdint>

#include "image/layer/data_writer.hpp"

namespace spc {

/// Position of the first data block: after the super block and the compressor options.
Result<std::uint64_t> begin_squashfs(int output, LayerCompression compression);

/// Writes everything but the data: inodes, directories, fragments, attributes and finally the super
/// block. All owners are 0:0 and there is no date, so that the same tree gives the same bytes.
/// `owners`: 2 if user and group have an entry each in the list of owners, else 1.
Result<void> write_squashfs_tables(int output, std::uint64_t data_end, LayerCompression compression,
                                   std::uint16_t owners, Inode& root,
                                   const std::vector<DataWriter::Fragment>& fragments);

}  // namespace spc
