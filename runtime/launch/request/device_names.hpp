#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Adds VENDOR/CLASS=NAME[,...], each once, in order. Whether there is such a device only the node knows.
Result<void> add_device_names(std::vector<std::string>& devices, std::string_view list);

}  // namespace spc
