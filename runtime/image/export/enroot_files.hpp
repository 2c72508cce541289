#pragma once

#include <string>
#include <vector>

#include "image/export/archive.hpp"

namespace spc {

/// How enroot stores an image's settings in the image: /etc/rc, a shell script that runs the
/// entrypoint, /etc/environment and /etc/fstab. They let enroot start exported images. `settings`:
/// records `key=value\0`; `config`: the image configuration.
std::vector<AddedFile> enroot_files(const std::string& settings, const std::string& config);

}  // namespace spc
