#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// What `list -f` prints: a heading, then a line for each container that runs, and one for each that does not.
Result<std::string> table_of(const std::vector<std::string>& names);

}  // namespace spc
