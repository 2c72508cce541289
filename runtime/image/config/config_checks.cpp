#include "image/config/config_checks.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/net/listener.hpp"
#include "image/reference/reference.hpp"
#include "image/reference/request.hpp"
#include "launch/policy/key_checks.hpp"

namespace spc::key {

bool is_byte_size(const std::string& text) {
  return text == "0" || (is_upper_size(text) && !text.ends_with('%'));
}

bool is_host(const std::string& text) { return parse_registry(text).has_value(); }

bool is_mirror(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (!is_host(text.substr(0, slash))) return false;
  return slash == std::string::npos ||
         ImageReference::parse("registry.invalid/" + text.substr(slash + 1)).has_value();
}

bool is_host_or_domain(const std::string& text) {
  return is_host(text.starts_with("*.") ? text.substr(2) : text);
}

bool is_proxy_or_none(const std::string& text) {
  if (text.empty()) return true;
  std::string_view rest = text;
  for (const std::string_view scheme : {"http://", "https://", "socks5h://", "socks5://"}) {
    if (!rest.starts_with(scheme)) continue;
    rest.remove_prefix(scheme.size());
    break;
  }
  const auto plain = [](char c) { return c > 0x20 && c < 0x7f; };
  return !rest.empty() && rest.find("://") == std::string_view::npos &&
         std::all_of(rest.begin(), rest.end(), plain);
}

bool is_plain_host(const std::string& text) {
  return !text.empty() && text.find_first_of(", ") == std::string::npos;
}

namespace {

/// The whole text as a number.
std::optional<unsigned> number_in(std::string_view text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

}  // namespace

bool is_network(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return false;
  const std::string address = text.substr(0, slash);
  const auto bits = number_in(std::string_view(text).substr(slash + 1));
  std::array<unsigned char, 16> bytes{};
  if (!bits) return false;
  return (*bits <= 32 && ::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) ||
         (*bits <= 128 && ::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1);
}

bool is_architecture_or_none(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '/' || c == '_';
  };
  return text.empty() || (std::ranges::all_of(text, fits) && Platform::parse("linux/" + text));
}

bool is_version_or_none(const std::string& text) {
  return text.find_first_not_of("0123456789.") == std::string::npos && !text.starts_with('.') &&
         !text.ends_with('.');
}

bool is_mpi_type(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && std::ranges::all_of(text, fits);
}

bool is_port_range_or_none(const std::string& text) { return PortRange::parse(text).has_value(); }

}  // namespace spc::key
