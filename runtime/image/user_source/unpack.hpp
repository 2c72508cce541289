#pragma once

#include <string>

#include "base/log.hpp"
#include "image/user_source/file_part.hpp"

namespace spc {

/// A compressed archive (gzip, zstd) as a temporary file of what is in it, by the rules for layers (layer/decompress.hpp); any
/// other file as it is. What is in it cannot be looked at otherwise: the list stands at its end. `log` hears of it.
Result<FilePart> unpacked(FilePart file, const std::string& name, Log& log);

}  // namespace spc
