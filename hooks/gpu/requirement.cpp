#include "hooks/gpu/requirement.hpp"

#include <algorithm>

#include "hooks/loader/elf.hpp"

namespace spc {
namespace {

/// Takes what comes before `separator` from `text`.
std::string_view next(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

bool starts_with_digit(std::string_view text) { return !text.empty() && text[0] >= '0' && text[0] <= '9'; }

bool holds(std::string_view condition, const RequirementFacts& facts) {
  const auto begin = condition.find_first_of("=!<>");
  if (begin == std::string_view::npos) return true;
  const auto end = condition.find_first_not_of("=!<>", begin);
  if (end == std::string_view::npos) return true;
  const std::string_view relation = condition.substr(begin, end - begin);
  const std::string_view wanted = condition.substr(end);
  const auto fact = facts.find(condition.substr(0, begin));
  if (fact == facts.end()) return true;
  const int order = starts_with_digit(wanted) ? compare_versions(fact->second, wanted) : fact->second.compare(wanted);
  if (relation == "=") return order == 0;
  if (relation == "!=") return order != 0;
  if (relation == "<") return order < 0;
  if (relation == "<=") return order <= 0;
  if (relation == ">") return order > 0;
  return relation != ">=" || order >= 0;
}

/// The first condition of an alternative that fails, or empty.
std::string_view failing(std::string_view alternative, const RequirementFacts& facts) {
  while (!alternative.empty()) {
    const std::string_view condition = next(alternative, ',');
    if (!condition.empty() && !holds(condition, facts)) return condition;
  }
  return {};
}

}  // namespace

std::string unsatisfied_condition(std::string_view requirement, const RequirementFacts& facts) {
  std::string failed;
  while (!requirement.empty()) {
    const std::string_view alternative = next(requirement, ' ');
    if (alternative.empty()) continue;
    const std::string_view condition = failing(alternative, facts);
    if (condition.empty()) return {};
    if (failed.empty() || (condition.starts_with("cuda") && !failed.starts_with("cuda"))) failed = condition;
  }
  return failed;
}

}  // namespace spc
