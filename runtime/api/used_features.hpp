#pragma once

#include <string>
#include <vector>

#include "spank_container/runtime.h"

namespace spc {

/// The options, without dashes (image/config/features.hpp), that the user set in any way.
std::vector<std::string> used_features(const spc_options& options);

}  // namespace spc
