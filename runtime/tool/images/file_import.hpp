#pragma once

#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc::tool {

/// Puts the squashfs in `file`, which is one or a SIF, into the caller's own store, whose directory
/// `store` is; returns the digest of its record. `name`: what it is shown as. It has no name there
/// yet.
Result<Digest> import_file(int store, int file, const std::string& name);

/// ErrorKind::invalid, with the reason, unless it is one of these.
Result<void> check_image_file(int file);

}  // namespace spc::tool
