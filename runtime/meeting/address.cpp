#include "meeting/address.hpp"

#include <charconv>

namespace spc {
namespace {

constexpr std::string_view kTokenDigits = "0123456789abcdef";

}  // namespace

std::string MeetingAddress::variable() const {
  std::string text = std::to_string(port) + ":";
  for (const std::uint8_t byte : token) text += {kTokenDigits[byte >> 4], kTokenDigits[byte & 15]};
  return text;
}

std::optional<MeetingAddress> MeetingAddress::parse(std::string_view variable) {
  MeetingAddress address;
  const auto colon = variable.find(':');
  if (colon == std::string_view::npos || variable.size() - colon - 1 != 2 * address.token.size())
    return std::nullopt;
  const auto [end, error] = std::from_chars(variable.data(), variable.data() + colon, address.port);
  if (error != std::errc() || end != variable.data() + colon || address.port == 0)
    return std::nullopt;
  for (std::size_t byte = 0; byte < address.token.size(); ++byte) {
    const auto high = kTokenDigits.find(variable[colon + 1 + 2 * byte]);
    const auto low = kTokenDigits.find(variable[colon + 2 + 2 * byte]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    address.token[byte] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return address;
}

}  // namespace spc
