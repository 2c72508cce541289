#include "launch/site/submit_check.hpp"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/process/supervised.hpp"
#include "image/reference/location.hpp"
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

/// In a session of its own, for which nobody waits: its parent ends at once.
void start_pull(const std::string& program, const std::string& image) {
  const auto work = [&] {
    auto started = Child::start({.path = program,
                                 .arguments = {program, image},
                                 .descriptors = {},
                                 .death_signal = 0,
                                 .group = Program::Group::session,
                                 .signals = Program::Signals::defaults,
                                 .directory = "/"});
    if (started) started->release();
    return 0;
  };
  if (auto forked = Child::run(work, "start pull_at_submit")) forked->wait();
}

void pull_at_submission(const LaunchRequest& request, const SubmitRules& rules) {
  if (rules.pull_at_submit.empty() || !request.begins_job || !rules.importer.empty()) return;
  if (request.pull.value_or(rules.pull) == PullPolicy::never) return;
  const auto image = ImageLocation::parse(request.image, rules.default_registry);
  if (image && image->kind == ImageLocation::Kind::registry) start_pull(rules.pull_at_submit, image->name.canonical());
}

}  // namespace

Result<void> check_at_submission(const LaunchRequest& request) {
  const auto rules = SubmitRules::read(SPC_CONFIG_FILE, ::geteuid());
  if (rules.known == SubmitRules::Known::none) return {};
  if (rules.known == SubmitRules::Known::some) return ask_tool(request);
  SPC_TRY(rules.check(request.features, request.image));
  if (rules.check_at_submit) SPC_TRY(ask_tool(request));
  pull_at_submission(request, rules);
  return {};
}

}  // namespace spc
