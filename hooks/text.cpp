#include "hooks/text.hpp"

#include <algorithm>
#include <charconv>

namespace spc {

std::optional<std::uint32_t> decimal(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string> parts_of(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(separator));
    list.remove_prefix(std::min(part.size() + 1, list.size()));
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

}  // namespace spc
