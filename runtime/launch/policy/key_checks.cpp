#include "launch/policy/key_checks.hpp"

#include <algorithm>
#include <string_view>

#include "launch/policy/image_rule.hpp"

namespace spc::key {
namespace {

bool is_name(std::string_view text, std::string_view also) {
  const auto fits = [&](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           also.find(c) != std::string_view::npos;
  };
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         std::all_of(text.begin(), text.end(), fits);
}

}  // namespace

bool is_line(const std::string& text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return !text.empty() && std::none_of(text.begin(), text.end(), is_control);
}

bool is_absolute(const std::string& text) { return is_line(text) && text.starts_with('/'); }
bool is_absolute_or_none(const std::string& text) { return text.empty() || is_absolute(text); }

bool is_seccomp(const std::string& text) {
  return text == "off" || text == "default" || is_absolute(text);
}

bool is_label_or_none(const std::string& text) {
  return text.empty() || (is_line(text) && text.find(' ') == std::string::npos);
}

bool is_image_rule(const std::string& text) { return is_line(text) && ImageRule::parse(text); }

bool is_mount(const std::string& text) {
  return is_line(text) &&
         (text.starts_with('/') || text.starts_with("tmpfs:/") || text.starts_with("umount:/"));
}

bool is_assignment(const std::string& text) {
  const auto equals = text.find('=');
  return equals != std::string::npos && is_name(std::string_view(text).substr(0, equals), "");
}

bool is_name_or_pattern(const std::string& text) { return is_name(text, "*?"); }

bool is_adapter(const std::string& text) {
  return is_line(text) && text.find_first_of(" /,") == std::string::npos;
}

bool is_hook(const std::string& text) {
  return is_line(text) && text.find('/') == std::string::npos;
}

bool is_upper_size(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (text.empty() || digits == 0 || std::min(digits, text.size()) > 12) return false;
  const std::string_view unit =
      digits == std::string::npos ? "" : std::string_view(text).substr(digits);
  const unsigned long long number = std::stoull(text);
  if (unit == "%") return number >= 1 && number <= 100;
  const bool is_unit =
      unit.size() == 1 && std::string_view("KMGTkmgt").find(unit[0]) != std::string_view::npos;
  return number > 0 && (unit.empty() || is_unit);
}

bool is_upper_size_or_none(const std::string& text) { return text.empty() || is_upper_size(text); }

}  // namespace spc::key
