#include "components.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace spank_container {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr int kMostGroups = 128;  // Slurm's MAX_HET_JOB_COMPONENTS

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./:@#+").find(c) != std::string_view::npos;
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (is_plain(c)) {
      escaped += c;
    } else {
      escaped +=
          {'%', kHex[static_cast<unsigned char>(c) >> 4], kHex[static_cast<unsigned char>(c) & 15]};
    }
  }
  return escaped;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      plain += text[at];
      continue;
    }
    const auto high = at + 2 < text.size() ? kHex.find(text[at + 1]) : std::string_view::npos;
    const auto low = at + 2 < text.size() ? kHex.find(text[at + 2]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos || high + low == 0)
      return std::nullopt;
    plain += static_cast<char>(high << 4 | low);
    at += 2;
  }
  return plain;
}

/// The text before the next `separator`, which are both taken off.
std::string_view take(std::string_view& text, char separator) {
  const auto end = std::min(text.find(separator), text.size());
  const auto taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

std::optional<int> group_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 ||
      number >= kMostGroups)
    return std::nullopt;
  return number;
}

std::optional<size_t> row_named(std::string_view name) {
  for (size_t row = 0; row < option_table().size(); ++row) {
    if (name == option_table()[row].name) return row;
  }
  return std::nullopt;
}

/// "0,2-3" or "[0,2-3]" in ascending order, which is srun's; empty: no such list.
std::vector<int> groups_of_list(std::string_view list) {
  std::vector<int> groups;
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  while (!list.empty()) {
    std::string_view range = take(list, ',');
    const auto first = group_number(take(range, '-'));
    const auto last = range.empty() ? first : group_number(range);
    if (!first || !last || *last < *first) return {};
    for (int group = *first; group <= *last; ++group) groups.push_back(group);
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

/// The value of --het-group, which may be shortened, in one component's words. Looks also at the
/// words of the command that is to be executed, which it cannot tell from options: so, two values
/// that differ are none.
std::optional<std::string> het_group_of(const std::vector<std::string>& words) {
  std::optional<std::string> found;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const std::string name = word.substr(0, word.find('='));
    const auto shortens = [&](std::string_view option) {
      return name.size() >= 5 && option.starts_with(name);
    };
    if (!shortens("--het-group") && !shortens("--pack-group")) continue;
    std::string value = name.size() < word.size() ? word.substr(name.size() + 1) : "";
    if (name.size() == word.size() && at + 1 < words.size()) value = words[at + 1];
    if (found && *found != value) return "";
    found = value;
  }
  return found;
}

}  // namespace

std::string write_components(const std::vector<Component>& components) {
  std::string text;
  for (const Component& component : components) {
    if (!text.empty()) text += ';';
    text += std::to_string(component.group);
    for (const GivenOption& given : component.given) {
      text += std::string(",") + option_table()[given.row].name + "=" + escape(given.value);
    }
  }
  return text;
}

std::vector<Component> read_components(std::string_view text) {
  std::vector<Component> components;
  while (!text.empty()) {
    std::string_view record = take(text, ';');
    const auto group = group_number(take(record, ','));
    if (!group) return {};
    Component component{.group = *group, .given = {}};
    while (!record.empty()) {
      std::string_view option = take(record, ',');
      const auto row = row_named(take(option, '='));
      const auto value = unescape(option);
      if (!row || !value) return {};
      component.given.push_back({*row, *value});
    }
    components.push_back(std::move(component));
  }
  return components;
}

std::vector<int> groups_of_command_line(const std::vector<std::string>& words) {
  std::vector<int> groups;
  std::vector<std::string> of_component;
  int index = 0;
  for (size_t at = 1; at <= words.size(); ++at) {
    if (at < words.size() && words[at] != ":") {
      of_component.push_back(words[at]);
      continue;
    }
    const auto list = het_group_of(of_component);
    const auto these = list ? groups_of_list(*list) : std::vector<int>{index};
    if (these.empty()) return {};
    groups.insert(groups.end(), these.begin(), these.end());
    of_component.clear();
    ++index;
  }
  return groups;
}

}  // namespace spank_container
