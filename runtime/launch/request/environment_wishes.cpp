#include "launch/request/environment_wishes.hpp"

#include <algorithm>

#include "launch/request/quoted_text.hpp"

namespace spc {
namespace {

/// A variable that can be meant: everything else is a mistake of typing.
bool is_name(std::string_view text) {
  const bool sane = std::all_of(text.begin(), text.end(),
                                [](char c) { return c > 0x20 && c < 0x7f && c != '='; });
  return sane && !text.empty() && (text[0] < '0' || text[0] > '9');
}

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

}  // namespace

Result<void> EnvironmentWishes::add(std::string_view list) {
  const auto refused = [&] {
    return Error(ErrorKind::invalid, "invalid format: " + in_quotes(list))
        .hint("NAME, PATTERN or NAME=VALUE, joined by commas");
  };
  for (std::string_view rest = list;;) {
    auto piece = next_piece(rest, "=,");
    if (!piece) return refused();
    std::string name = std::move(piece->text);
    if (piece->end == '=') {
      const bool named = is_name(name) && !is_pattern(name);
      piece = next_piece(rest, ",");
      if (!named || !piece) return refused();
      values[name] = piece->text;
    } else if (const auto equals = name.find('=');
               equals != std::string::npos) {  // "NAME=VALUE" in quotes
      const std::string value = name.substr(equals + 1);
      name.resize(equals);
      if (!is_name(name) || is_pattern(name)) return refused();
      values[name] = value;
    } else if (!is_name(name)) {
      return refused();
    } else {
      keep.push_back(std::move(name));
    }
    if (piece->end == '\0') return {};
  }
}

bool EnvironmentWishes::keeps(std::string_view name) const {
  return std::any_of(keep.begin(), keep.end(),
                     [&](const auto& pattern) { return matches_pattern(pattern, name); });
}

EnvironmentWishes EnvironmentWishes::of_site(const SitePolicy& site) {
  EnvironmentWishes wishes;
  wishes.keep = site.keep_env;
  for (const std::string& variable : site.env) {
    const auto equals = std::min(variable.find('='), variable.size());
    if (equals > 0 && equals < variable.size())
      wishes.values[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return wishes;
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  // Where the last * was, and how much of the text it stands for so far.
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t covered = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      covered = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++covered;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace spc
