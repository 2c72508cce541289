#include "launch/site/submit_check.hpp"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/process/supervised.hpp"
#include "protocol/submit.hpp"

namespace spc {
namespace {

constexpr std::chrono::seconds kPatience{12};  // the program itself asks registries for kSubmitSeconds
constexpr std::size_t kMostAnswer = 2000;

bool there_is_a_configuration() {
  const std::string file = SPC_CONFIG_FILE;
  return ::access(file.c_str(), F_OK) == 0 || ::access((file.substr(0, file.rfind('/')) + "/config.d").c_str(), F_OK) == 0;
}

std::vector<std::string> words_for(const LaunchRequest& request) {
  std::vector<std::string> words{SPC_TOOL, kSubmitCheck, request.image};
  words.emplace_back(request.pull ? name_of(*request.pull) : "");
  words.emplace_back(request.platform ? request.platform->str() : "");
  words.insert(words.end(), request.features.begin(), request.features.end());
  return words;
}

}  // namespace

Result<void> check_at_submission(const LaunchRequest& request) {
  if (!there_is_a_configuration() || ::access(SPC_TOOL, X_OK) != 0) return {};
  const auto ran = run_supervised({.path = SPC_TOOL, .arguments = words_for(request), .descriptors = {}}, "",
                                  {.time = kPatience, .output = kMostAnswer}, [](std::string_view) {});
  std::string answer = ran ? ran->output : "";
  if (answer.empty() || !answer.ends_with('\n')) return {};
  answer.pop_back();
  return Error(ErrorKind::refused, printable(answer));
}

}  // namespace spc
