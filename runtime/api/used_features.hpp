#pragma once

#include <string>
#include <vector>

#include "spank_container/runtime.h"

namespace spc {

/// The options, by their names without dashes (image/features.hpp), that the user has given in whatever way.
std::vector<std::string> used_features(const spc_options& options);

}  // namespace spc
