#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "image/reference/request.hpp"

namespace spc {

/// One key of config.toml: what it is called, what it may be, and the member that it sets.
template <typename Owner>
struct KeyRow {
  using Sink = std::variant<bool Owner::*, std::optional<bool> Owner::*, std::string Owner::*,
                            std::int64_t Owner::*, std::uint32_t Owner::*, std::uint64_t Owner::*,
                            PullPolicy Owner::*, std::vector<std::string> Owner::*>;
  using Words = std::vector<std::string_view>;

  const char* name;
  const char* type;  ///< as the manual page says it; of a text without a check: the allowed words
  const char* default_text;
  const char* meaning;
  Sink sink;
  bool (*check)(const std::string&) = nullptr;  ///< of a text, or of each element of a list
  const char* rule = nullptr;                   ///< what is said of a text that fails it
  Words (*words)() = nullptr;                   ///< all that an element of a list may be
  std::int64_t most = 24 * 3600;                ///< of a number
};

inline void text_to(std::string& value, std::string_view text) { value = text; }
inline void text_to(bool& value, std::string_view text) { value = text == "true"; }
inline void text_to(std::optional<bool>& value, std::string_view text) { value = text == "true"; }
inline void text_to(PullPolicy& value, std::string_view text) {
  value = parse_pull_policy(std::string(text)).value_or(value);
}
inline void text_to(std::vector<std::string>& value, std::string_view text) {
  value.emplace_back(text);
}
template <typename Number>
void text_to(Number& value, std::string_view text) {
  std::from_chars(text.data(), text.data() + text.size(), value);
}

/// Sets the member of `row` to a text that has been checked; of a list: adds an element.
template <typename Owner>
void set_by(const KeyRow<Owner>& row, Owner& owner, std::string_view text) {
  std::visit([&](auto member) { text_to(owner.*member, text); }, row.sink);
}

/// All keys have their defaults.
template <typename Owner>
void set_defaults(std::span<const KeyRow<Owner>> rows, Owner& owner) {
  for (const KeyRow<Owner>& row : rows) {
    if (*row.default_text != '\0') set_by(row, owner, row.default_text);
  }
}

}  // namespace spc
