#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// Without blanks and line ends around it.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kAround = " \t\r\n";
  const auto begin = text.find_first_not_of(kAround);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kAround) - begin + 1);
}

/// The parts between separators, empty ones too: there is always one more part than there are
/// separators.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// The words with `between` between them.
template <typename Words>
std::string joined(const Words& words, std::string_view between) {
  std::string text;
  for (bool first = true; const auto& word : words) {
    if (!first) text += between;
    text += word;
    first = false;
  }
  return text;
}

/// How many bytes at the beginning are UTF-8; all of them if there is no other (RFC 3629, without
/// overlong forms and surrogates).
inline std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
  };
  for (std::size_t at = 0;;) {
    const unsigned first = byte(at);
    const std::size_t more = first < 0x80   ? 0
                             : first < 0xc2 ? 4
                             : first < 0xe0 ? 1
                             : first < 0xf0 ? 2
                             : first < 0xf5 ? 3
                                            : 4;
    if (at == text.size() || more == 4) return at;
    char32_t character = first & (0x7fU >> more);
    for (std::size_t i = 1; i <= more; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) return at;
      character = character << 6 | (byte(at + i) & 0x3f);
    }
    const bool is_short = (more == 2 && character < 0x800) || (more == 3 && character < 0x10000);
    if (is_short || character > 0x10ffff || (character >= 0xd800 && character < 0xe000)) return at;
    at += more + 1;
  }
}

/// What a shell's variable may have in its name, and may be called: it hands on no other.
inline bool is_shell_name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}
inline bool is_shell_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         std::all_of(text.begin(), text.end(), is_shell_name_character);
}

/// As one word of a POSIX shell.
inline std::string for_shell(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

/// Each of them so, behind a blank.
inline std::string words_for_shell(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += " " + for_shell(word);
  return text;
}

/// A path without empty parts, "." and "name/..", and without a slash at its end, from its text
/// alone: links are not followed.
inline std::string normal_path(std::string_view path) {
  const bool is_absolute = path.starts_with('/');
  std::vector<std::string_view> parts;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (!parts.empty() && parts.back() != "..") {
      parts.pop_back();
    } else if (!is_absolute) {
      parts.push_back(part);
    }
  }
  return (is_absolute ? "/" : "") + joined(parts, "/");
}

}  // namespace spc
