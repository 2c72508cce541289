#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// The fact sheet of an image of these layers, the bottom layer first, as records
/// (image/facts/facts.hpp).
Result<std::string> facts_of_layers(std::vector<UniqueFd> layers);

}  // namespace spc
