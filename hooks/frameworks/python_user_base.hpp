#pragma once

#include <string>

#include "hooks/hook.hpp"

namespace spc {

/// `pip install --user` into a directory of the image (`python_user_base` in config.toml).
extern const Hook python_user_base_hook;

/// The name of that directory: the start of the manifest digest or, for an image file or directory,
/// of a number derived from its path.
std::string python_base_name(const std::string& image_digest, const std::string& image_name);

}  // namespace spc
