#pragma once

#include <string>

#include "base/log.hpp"
#include "image/user_source/file_part.hpp"

namespace spc::user_source {

/// The content of a compressed archive (gzip, zstd) as a temporary file, by the rules for layers
/// (image/layer/archive/decompress.hpp); any other file unchanged. The index of an archive is at
/// its end, so it must be unpacked. Reported to `log`.
Result<FilePart> unpacked(FilePart file, const std::string& name, Log& log);

}  // namespace spc::user_source
