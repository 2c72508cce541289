#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::enroot {

/// The output of `list -f`: a heading, then a line for each running container, and one for each
/// other.
Result<std::string> table_of(const std::vector<std::string>& names);

}  // namespace spc::enroot
