#include "launch/policy/image_rule.hpp"

#include <fnmatch.h>

#include <utility>

#include "base/format.hpp"

namespace spc {
namespace {

std::string_view take_until(std::string_view& text, char end) {
  const auto part = text.substr(0, text.find(end));
  text.remove_prefix(part.size() == text.size() ? text.size() : part.size() + 1);
  return part;
}

Result<void> add_condition(ImageRule& rule, std::string_view word) {
  const std::pair<std::string_view, std::vector<std::string>&> kinds[] = {
      {"user=", rule.users}, {"group=", rule.groups}, {"partition=", rule.partitions}};
  for (const auto& [key, names] : kinds) {
    if (!word.starts_with(key)) continue;
    for (std::string_view rest = word.substr(key.size()); !rest.empty();)
      names.emplace_back(take_until(rest, ','));
    if (names.empty() || word.ends_with(',')) break;
    return {};
  }
  return Error(ErrorKind::invalid,
               in_quotes(word) + " is not user=, group= or partition= with names");
}

}  // namespace

Result<ImageRule> ImageRule::parse(std::string_view text) {
  ImageRule rule;
  rule.pattern = take_until(text, ' ');
  if (rule.pattern.empty() || rule.pattern.find('=') != std::string::npos) {
    return Error(ErrorKind::invalid, "it does not begin with a pattern for images");
  }
  while (!text.empty()) {
    const std::string_view word = take_until(text, ' ');
    if (!word.empty()) SPC_TRY(add_condition(rule, word));
  }
  return rule;
}

bool ImageRule::fits(const std::string& repository) const {
  return ::fnmatch(pattern.c_str(), repository.c_str(), 0) == 0;
}

}  // namespace spc
