#pragma once

#include <string>

namespace spc {

/// A config.toml that has every key, with its meaning and its default, commented out.
std::string config_example();

}  // namespace spc
