#pragma once

#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/remote/remote_file.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {

/// Fetches `oras://...` or `https://...`, a SIF or squashfs file, into the caller's own store,
/// where its name is the text.
Result<Digest> obtain_remote_image(int store, const Config& config, const Wanted& wanted);

/// The same into a file at `path`, as it is.
Result<Digest> fetch_remote_image(const Config& config, const Wanted& wanted,
                                  const std::string& path, bool replace);

}  // namespace spc::tool
