#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace spc {

/// The error of a pull of this image, as the user wrote it, with better advice where the name has
/// no registry: which one was taken. Of a # in a script, behind which everything is a comment, the
/// name has only what stands before.
Error advised(Error error, std::string_view image);

}  // namespace spc
