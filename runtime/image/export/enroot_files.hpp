#pragma once

#include <string>
#include <vector>

#include "image/export/archive.hpp"

namespace spc {

/// What enroot keeps of an image's settings in the image itself: /etc/rc, a script for the shell that runs the entrypoint,
/// /etc/environment and /etc/fstab. With them enroot starts what we export.
/// `settings`: records `key=value\0`; `config`: the image's configuration.
std::vector<AddedFile> enroot_files(const std::string& settings, const std::string& config);

}  // namespace spc
