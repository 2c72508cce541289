#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Adds VENDOR/CLASS=NAME[,...], without duplicates, in order. Only the node knows whether a device
/// exists.
Result<void> add_device_names(std::vector<std::string>& devices, std::string_view list);

}  // namespace spc
