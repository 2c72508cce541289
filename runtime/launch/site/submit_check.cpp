#include "launch/site/submit_check.hpp"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/process/supervised.hpp"
#include "launch/policy/submit_rules.hpp"
#include "protocol/submit.hpp"

namespace spc {
namespace {

constexpr std::chrono::seconds kPatience{12};  // the program itself asks registries for kSubmitSeconds
constexpr std::size_t kMostAnswer = 2000;

std::vector<std::string> words_for(const LaunchRequest& request) {
  std::vector<std::string> words{SPC_TOOL, kSubmitCheck, request.image};
  words.emplace_back(request.pull ? name_of(*request.pull) : "");
  words.emplace_back(request.platform ? request.platform->str() : "");
  words.insert(words.end(), request.features.begin(), request.features.end());
  return words;
}

/// `scontainer submit-check`, which reads all of TOML, and can ask a registry.
Result<void> ask_tool(const LaunchRequest& request) {
  if (::access(SPC_TOOL, X_OK) != 0) return {};
  const auto ran = run_supervised({.path = SPC_TOOL, .arguments = words_for(request), .descriptors = {}}, "",
                                  {.time = kPatience, .output = kMostAnswer}, [](std::string_view) {});
  std::string answer = ran ? ran->output : "";
  if (answer.empty() || !answer.ends_with('\n')) return {};
  answer.pop_back();
  return Error(ErrorKind::refused, printable(answer));
}

}  // namespace

Result<void> check_at_submission(const LaunchRequest& request) {
  const auto rules = SubmitRules::read(SPC_CONFIG_FILE, ::geteuid());
  if (rules.known == SubmitRules::Known::none) return {};
  if (rules.known == SubmitRules::Known::some) return ask_tool(request);
  SPC_TRY(rules.check(request.features, request.image));
  return rules.check_at_submit ? ask_tool(request) : Result<void>();
}

}  // namespace spc
