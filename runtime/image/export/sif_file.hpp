#pragma once

#include <string>

#include "base/result.hpp"

namespace spc {

/// Makes a SIF file of the squashfs that `file` is, open for reading and writing: puts in front of
/// it header, table and, unless it is empty, the configuration as `oci-config.json`. The squashfs
/// is the primary system partition, for this machine's architecture. The same input gives the same
/// bytes: the number of the image is made of its content, its date is $SOURCE_DATE_EPOCH, or none.
Result<void> make_sif(int file, const std::string& config);

}  // namespace spc
