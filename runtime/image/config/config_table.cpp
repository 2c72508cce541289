#include "image/config/config_table.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "base/nearest.hpp"

namespace spc {
namespace {

int line_of(const toml::value& value) {
#if defined(TOML11_VERSION_MAJOR) && TOML11_VERSION_MAJOR >= 4
  return static_cast<int>(value.location().first_line_number());
#else
  return static_cast<int>(value.location().line());
#endif
}

std::string did_you_mean(std::string_view word) {
  return formatted("did you mean {}?", in_quotes(word));
}

/// `a, b or c`.
std::string listed(std::span<const std::string_view> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace

Error config_error(const std::string& file, const toml::value& value, const std::string& why) {
  return {ErrorKind::invalid,
          formatted("configuration {}, line {}: {}", in_quotes(file), line_of(value), why)};
}

Result<void> TableReader::check_keys(std::span<const std::string_view> known) const {
  for (const auto& [name, value] : table_.as_table()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto meant = nearest(name, known);
    return refuse(value, name, "unknown key")
        .hint(meant.empty() ? "the keys are described in spank-container.conf(5)"
                            : did_you_mean(meant));
  }
  return {};
}

Result<void> TableReader::read(const char* name, bool& into) const {
  const toml::value* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return refuse(*value, name, "expected true or false");
  into = value->as_boolean();
  return {};
}

Result<void> TableReader::read(const char* name, std::string& into, const Check& check,
                               const char* rule) const {
  const toml::value* value = find(name);
  if (value == nullptr) return {};
  const std::string text = SPC_TRY(text_of(*value, name));
  if (!check(text))
    return refuse(*value, name, formatted("{} is not allowed: {}", in_quotes(text), rule));
  into = text;
  return {};
}

Result<void> TableReader::read(const char* name, std::vector<std::string>& into, const Check& check,
                               const char* rule) const {
  return each_of(
      name, into, [&](const toml::value& element, const std::string& text) -> Result<void> {
        if (!check(text))
          return refuse(element, name, formatted("{} is not allowed: {}", in_quotes(text), rule));
        return {};
      });
}

Result<void> TableReader::read_words(const char* name, std::vector<std::string>& into,
                                     std::span<const std::string_view> words) const {
  return each_of(name, into, [&](const toml::value& element, const std::string& text) {
    return check_word(element, name, text, words);
  });
}

Result<void> TableReader::read_word(const char* name, std::string& into,
                                    std::span<const std::string_view> words) const {
  const toml::value* value = find(name);
  if (value == nullptr) return {};
  const std::string text = SPC_TRY(text_of(*value, name));
  SPC_TRY(check_word(*value, name, text, words));
  into = text;
  return {};
}

const toml::value* TableReader::find(const char* name) const {
  const auto found = table_.as_table().find(name);
  return found == table_.as_table().end() ? nullptr : &found->second;
}

Error TableReader::refuse(const toml::value& value, std::string_view name,
                          const std::string& why) const {
  return config_error(file_, value,
                      formatted("{}: {}", printable(prefix_ + std::string(name)), why));
}

/// No text here has a NUL: they travel as records that end with one.
Result<std::string> TableReader::text_of(const toml::value& value, const char* name) const {
  if (!value.is_string()) return refuse(value, name, "expected text in quotes");
  std::string text = toml::get<std::string>(value);
  if (text.find('\0') != std::string::npos)
    return refuse(value, name, in_quotes(text) + " is not allowed: it contains a NUL");
  return text;
}

Result<void> TableReader::each_of(
    const char* name, std::vector<std::string>& into,
    const std::function<Result<void>(const toml::value&, const std::string&)>& check) const {
  const toml::value* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) return refuse(*value, name, "expected a list: [\"...\", \"...\"]");
  into.clear();
  for (const toml::value& element : value->as_array()) {
    const std::string text = SPC_TRY(text_of(element, name));
    SPC_TRY(check(element, text));
    into.push_back(text);
  }
  return {};
}

Result<void> TableReader::check_word(const toml::value& value, const char* name,
                                     const std::string& text,
                                     std::span<const std::string_view> words) const {
  if (std::find(words.begin(), words.end(), text) != words.end()) return {};
  const auto meant = nearest(text, words);
  auto error = refuse(value, name,
                      formatted("{} is not allowed: expected {}", in_quotes(text), listed(words)));
  return meant.empty() ? std::move(error) : std::move(error).hint(did_you_mean(meant));
}

Result<void> TableReader::read_number(const char* name, std::int64_t& into,
                                      std::int64_t most) const {
  const toml::value* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_integer()) return refuse(*value, name, "expected a whole number");
  const auto number = value->as_integer();
  if (number < 0 || number > most)
    return refuse(*value, name, "expected a number from 0 to " + std::to_string(most));
  into = number;
  return {};
}

namespace {

/// Of a number with K, M, G or T behind it.
std::int64_t bytes_in(const std::string& text) {
  const std::size_t unit = std::string_view("KMGTkmgt").find(text.back());
  const std::int64_t number = std::stoll(text);
  return unit == std::string_view::npos ? number : number << (10 * (unit % 4 + 1));
}

}  // namespace

Result<void> TableReader::read_size(const char* name, std::int64_t& into, const Check& check,
                                    const char* rule) const {
  std::string text = std::to_string(into);
  SPC_TRY(read(name, text, check, rule));
  into = bytes_in(text);
  return {};
}

std::vector<std::string_view> TableReader::words_of(std::string_view type) {
  std::vector<std::string_view> words;
  while (!type.empty()) {
    words.push_back(type.substr(0, type.find(',')));
    type.remove_prefix(std::min(words.back().size() + 2, type.size()));
  }
  return words;
}

}  // namespace spc
