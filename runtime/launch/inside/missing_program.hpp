#pragma once

#include <string>
#include <string_view>

namespace spc {

/// Why a program cannot be executed in a container that is missing in it, or whose interpreter or
/// loader is: a line for the user. In the container. Empty: it is all there. `path` is the
/// command's PATH.
std::string why_missing(const std::string& program, std::string_view path, std::string_view image);

}  // namespace spc
