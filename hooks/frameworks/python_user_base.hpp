#pragma once

#include <string>

#include "hooks/hook.hpp"

namespace spc {

/// `pip install --user` into a directory that belongs to the image (`python_user_base` in config.toml).
extern const Hook python_user_base_hook;

/// The name of that directory: the beginning of the digest of the image's manifest or, for an image that is a file or directory, of
/// a number made of its path.
std::string python_base_name(const std::string& image_digest, const std::string& image_name);

}  // namespace spc
