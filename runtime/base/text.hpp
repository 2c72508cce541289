#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

// --- text ---

/// Returns the text without blanks and line ends around it.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kAround = " \t\r\n";
  const auto begin = text.find_first_not_of(kAround);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kAround) - begin + 1);
}

/// Returns the parts between separators, including empty ones: always one more than there are
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

/// Removes and returns the part before the first separator, which is removed as well.
inline std::string_view next_part(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

/// Joins the words with `between`.
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

/// Returns the length of the longest prefix that is valid UTF-8 (RFC 3629, without overlong forms
/// and surrogates).
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

/// Return whether a character, or a whole name, is valid in the name of a shell variable. Shells do
/// not pass on other variables.
inline bool is_shell_name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}
inline bool is_shell_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         std::all_of(text.begin(), text.end(), is_shell_name_character);
}

/// Returns the text without a pair of quotes around it.
inline std::string_view unquoted(std::string_view text) {
  const bool is_quoted =
      text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

/// Quotes the text as one word of a POSIX shell.
inline std::string for_shell(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

/// Quotes each word, preceded by a blank.
inline std::string words_for_shell(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += " " + for_shell(word);
  return text;
}

/// Returns the path without empty parts, "." and "name/..", and without a trailing slash. Works on
/// the text alone and follows no links.
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

// --- nearest ---

/// Returns the number of letters to change, add or leave out to make one of the other
/// (Levenshtein), for "did you mean".
inline std::size_t letters_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

/// Returns the nearest known word; empty if none is near.
inline std::string_view nearest(std::string_view typed, std::span<const std::string_view> known) {
  const auto nearer = [&](std::string_view a, std::string_view b) {
    return letters_between(typed, a) < letters_between(typed, b);
  };
  const auto found = std::min_element(known.begin(), known.end(), nearer);
  return found != known.end() && letters_between(typed, *found) <= 3 ? *found : std::string_view();
}

// --- numbers ---

/// Stores the number that is the whole text. Returns false for other texts, and for numbers that
/// the type cannot hold.
template <typename Number>
bool read_number(std::string_view text, Number& into, int base = 10) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || rest != end) return false;
  into = number;
  return true;
}

/// Returns it instead.
template <typename Number = std::uint32_t>
std::optional<Number> parse_number(std::string_view text, int base = 10) {
  Number number{};
  return read_number(text, number, base) ? std::optional(number) : std::nullopt;
}

/// Returns the number at `offset` of a string or another sequence of bytes, in this machine's byte
/// order, which is little-endian like that of the files. The caller checks the size.
template <typename Number = std::uint32_t, typename Bytes>
Number number_at(const Bytes& bytes, std::size_t offset) {
  static_assert(sizeof *std::data(bytes) == 1);
  Number number;
  std::memcpy(&number, std::data(bytes) + offset, sizeof number);
  return number;
}

template <typename Number>
void append_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// --- records ---

/// Texts of the form `key=value`, each ended by NUL: the format between processes of this package
/// where the number and length of texts is not known. Keys may be repeated and keep their order.
class Records {
 public:
  explicit Records(std::string_view bytes) : rest_(bytes) {}

  /// Advances to the next record; false after the last. Skips texts without `=`.
  bool next() {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\0'), rest_.size());
      const std::string_view record = rest_.substr(0, end);
      damaged_ = damaged_ || end == rest_.size();
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      const std::size_t equals = record.find('=');
      damaged_ = damaged_ || equals == std::string_view::npos;
      if (equals == std::string_view::npos) continue;
      key_ = record.substr(0, equals);
      value_ = record.substr(equals + 1);
      return true;
    }
    return false;
  }
  [[nodiscard]] std::string_view key() const { return key_; }
  [[nodiscard]] std::string_view value() const { return value_; }
  /// Returns whether a record so far had no `=`, or the last is not terminated.
  [[nodiscard]] bool damaged() const { return damaged_; }

 private:
  std::string_view rest_, key_, value_;
  bool damaged_ = false;
};

inline void add_record(std::string& records, std::string_view key, std::string_view value) {
  records.append(key).append("=").append(value).push_back('\0');
}

}  // namespace spc
