#include "hooks/gpu/requirement.hpp"

#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "hooks/gpu/nvidia_choice.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

/// Takes what comes before `separator` from `text`.
std::string_view next(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

bool starts_with_digit(std::string_view text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

bool holds(std::string_view condition, const RequirementFacts& facts) {
  const auto begin = condition.find_first_of("=!<>");
  if (begin == std::string_view::npos) return true;
  const auto end = condition.find_first_not_of("=!<>", begin);
  if (end == std::string_view::npos) return true;
  const std::string_view relation = condition.substr(begin, end - begin);
  const std::string_view wanted = condition.substr(end);
  const auto fact = facts.find(condition.substr(0, begin));
  if (fact == facts.end()) return true;
  const int order = starts_with_digit(wanted) ? compare_versions(fact->second, wanted)
                                              : fact->second.compare(wanted);
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

/// Every NVIDIA_REQUIRE_* of the image, or of the job where it has the same.
std::map<std::string, std::string> requirements_of(const HookContext& context) {
  constexpr std::string_view kPrefix = "NVIDIA_REQUIRE_";
  std::map<std::string, std::string> found;
  for (const auto* variables : {&context.image, &context.job}) {
    for (const auto& [name, value] : *variables) {
      if (name.starts_with(kPrefix)) found[name] = value;
    }
  }
  return found;
}

bool are_disabled(const HookContext& context) {
  constexpr std::array<std::string_view, 6> kYes{"1", "t", "T", "TRUE", "true", "True"};
  const std::string* disabled = of_job_or_image(context, "NVIDIA_DISABLE_REQUIRE");
  return disabled != nullptr && std::ranges::find(kYes, *disabled) != kYes.end();
}

/// 12.4 of 1204.
std::string version_text(unsigned cuda) {
  return std::to_string(cuda / 100) + "." + std::to_string(cuda % 100);
}

std::optional<std::uint32_t> major_of(std::string_view version) {
  return decimal(version.substr(0, version.find('.')));
}

}  // namespace

std::string unsatisfied_condition(std::string_view requirement, const RequirementFacts& facts) {
  std::string failed;
  while (!requirement.empty()) {
    const std::string_view alternative = next(requirement, ' ');
    if (alternative.empty()) continue;
    const std::string_view condition = failing(alternative, facts);
    if (condition.empty()) return {};
    if (failed.empty() || (condition.starts_with("cuda") && !failed.starts_with("cuda")))
      failed = condition;
  }
  return failed;
}

void check_requirements(const HookContext& context, const NvidiaDriver& driver, bool own_libcuda,
                        Edits& edits) {
  if (are_disabled(context)) return;
  const unsigned cuda = cuda_version_of_driver(driver.version);
  RequirementFacts facts{{"driver", driver.version}};
  if (cuda != 0) facts["cuda"] = version_text(cuda);
  const auto requirements = requirements_of(context);
  for (const auto& [name, requirement] : requirements) {
    const std::string condition = unsatisfied_condition(requirement, facts);
    if (condition.empty()) continue;
    edits.refusal = formatted(
        "unsatisfied condition: {}, please update your driver to a newer version, or use an "
        "earlier cuda container"
        " (hint: the driver is {}{}; NVIDIA_DISABLE_REQUIRE=1 skips this check)",
        condition.substr(0, 200), driver.version, cuda != 0 ? ", for CUDA " + facts["cuda"] : "");
    return;
  }
  // Within a major version newer programs run with older drivers, so this is no more than a
  // warning.
  const std::string* made_for = context.of_image("CUDA_VERSION");
  if (made_for == nullptr || cuda == 0 || own_libcuda ||
      requirements.contains("NVIDIA_REQUIRE_CUDA"))
    return;
  if (major_of(*made_for) > cuda / 100) {
    edits.warnings.push_back(
        formatted("the image is built for CUDA {}, the node's driver {} is for CUDA {}",
                  made_for->substr(0, 200), driver.version, facts["cuda"]));
  }
}

}  // namespace spc
