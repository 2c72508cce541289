#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// A number of decimal digits alone; nothing for any other text.
std::optional<std::uint32_t> decimal(std::string_view text);

/// The parts of a separated list, without empty ones.
std::vector<std::string> parts_of(std::string_view list, char separator = ',');

}  // namespace spc
