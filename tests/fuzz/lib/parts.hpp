#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace spc::fuzz {

inline constexpr char kCut = '\x01';  // separates the parts of an input

/// Returns the first part. `rest` receives the remainder.
inline std::string_view next_part(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(kCut), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

/// Replaces placeholders in an input by values that only the target knows.
inline std::string replaced(std::string text, std::string_view word, std::string_view by) {
  for (std::size_t at = text.find(word); at != std::string::npos;
       at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
  return text;
}

}  // namespace spc::fuzz
