#include "launch/site/submit_check.hpp"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/submit_rules.hpp"
#include "protocol/submit.hpp"

namespace spc {
namespace {

constexpr std::chrono::seconds kPatience{
    12};  // the program itself asks registries for kSubmitSeconds
constexpr std::size_t kMostAnswer = 6000;

std::vector<std::string> words_for(const LaunchRequest& request, const Destination& destination) {
  std::vector<std::string> words{SPC_TOOL, kSubmitCheck, without_secrets(request.image)};
  words.emplace_back(request.pull ? name_of(*request.pull) : "");
  words.emplace_back(request.platform ? request.platform->str() : "");
  words.push_back(destination.partitions);
  words.push_back(destination.constraint);
  words.insert(words.end(), request.features.begin(), request.features.end());
  return words;
}

/// `scontainer submit-check`, which reads all of TOML, and can ask a registry.
Result<SubmitAnswer> ask_tool(const LaunchRequest& request, const Destination& destination) {
  SubmitAnswer answer;
  if (::access(SPC_TOOL, X_OK) != 0) return answer;
  const auto ran = run_supervised(
      {.path = SPC_TOOL, .arguments = words_for(request, destination), .descriptors = {}}, "",
      {.time = kPatience, .output = kMostAnswer}, [](std::string_view) {});
  auto lines = split(ran ? std::string_view(ran->output) : "", '\n');
  lines.pop_back();  // what no line end follows is none
  for (std::string_view line : lines) {
    const auto takes = [&](std::string_view word) {
      if (!line.starts_with(word)) return false;
      line.remove_prefix(word.size());
      return true;
    };
    if (takes(kSubmitRefused)) return Error(ErrorKind::refused, printable(line));
    if (takes(kSubmitWarning)) answer.warnings.push_back(printable(line));
    if (takes(kSubmitDigest)) answer.digest = printable(line);
  }
  return answer;
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
  if (image && image->kind == ImageLocation::Kind::registry)
    start_pull(rules.pull_at_submit, image->name.canonical());
}

}  // namespace

Result<SubmitAnswer> check_at_submission(const LaunchRequest& request,
                                         const Destination& destination) {
  const auto rules = SubmitRules::read(SPC_CONFIG_FILE, ::geteuid());
  if (rules.known == SubmitRules::Known::none) return SubmitAnswer();
  if (rules.known == SubmitRules::Known::some) return ask_tool(request, destination);
  SPC_TRY(rules.check(request.features, request.image));
  SubmitAnswer answer;
  if (rules.check_at_submit) answer = SPC_TRY(ask_tool(request, destination));
  pull_at_submission(request, rules);
  return answer;
}

}  // namespace spc
