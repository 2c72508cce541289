#include "hooks/cdi/names.hpp"

#include <algorithm>

namespace spc {
namespace {

constexpr std::size_t kLongestName = 256;

// Not <cctype>: the result must not depend on the locale.
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_name_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(std::string_view text, std::string_view also) {
  const auto fits = [&](char c) {
    return is_letter(c) || is_name_digit(c) || also.find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kLongestName &&
         (is_letter(text.back()) || is_name_digit(text.back())) &&
         std::all_of(text.begin(), text.end(), fits);
}

bool is_vendor_or_class(std::string_view text) {
  return is_word(text, "._-") && is_letter(text.front());
}

}  // namespace

bool is_cdi_kind(std::string_view kind) {
  const auto slash = kind.find('/');
  return slash != std::string_view::npos && is_vendor_or_class(kind.substr(0, slash)) &&
         is_vendor_or_class(kind.substr(slash + 1));
}

bool is_cdi_device_name(std::string_view name) {
  return is_word(name, "._:-") && (is_letter(name.front()) || is_name_digit(name.front()));
}

Result<CdiName> CdiName::parse(std::string_view text) {
  const auto equals = text.find('=');
  const std::string_view kind = text.substr(0, equals);
  const std::string_view name =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  if (!is_cdi_kind(kind) || !is_cdi_device_name(name)) {
    return Error(ErrorKind::invalid, in_quotes(text) + " is not a device name")
        .hint("VENDOR/CLASS=NAME, such as nvidia.com/gpu=all");
  }
  return CdiName{std::string(kind), std::string(name)};
}

}  // namespace spc
