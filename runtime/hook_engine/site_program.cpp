#include "hook_engine/site_program.hpp"

#include <algorithm>
#include <charconv>
#include <deque>

#include "base/format.hpp"

namespace spc {

std::vector<std::string> environment_of_hooks(const HookContext& context) {
  std::vector<std::string> environment{
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"};
  const std::string* home = context.of_job("HOME");
  const std::string* user = context.of_job("USER");
  if (!context.home.empty()) {
    environment.push_back("HOME=" + context.home);
  } else if (home != nullptr) {
    environment.push_back("HOME=" + *home);
  }
  const std::string name = !context.user.empty() ? context.user : user != nullptr ? *user : "";
  if (!name.empty()) environment.insert(environment.end(), {"USER=" + name, "LOGNAME=" + name});
  const auto is_plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const auto& [variable, value] : context.job) {
    if (!variable.starts_with("SLURM_") || !std::all_of(variable.begin(), variable.end(), is_plain))
      continue;
    environment.push_back(variable + "=" + value);
  }
  return environment;
}

Result<std::string> run_site_program(const std::string& hook, const HookProcess& process,
                                     Log& log) {
  constexpr std::size_t kLastLines = 3;
  std::deque<std::string> last;
  const auto tell = [&](std::string_view line) {
    last.emplace_back(line);
    if (last.size() > kLastLines) last.pop_front();
    log.write(LogLevel::info, formatted("hook {}: {}", hook, printable(line)));
  };
  auto end = SPC_TRY_DURING("run " + in_quotes(process.program), run_hook_process(process, tell));
  if (end.good()) return std::move(end.output);
  std::string lines;
  for (const std::string& line : last) lines += (lines.empty() ? "" : "\n") + line;
  return failure_of(process, end, lines);
}

std::chrono::seconds time_limit_of_hooks(const HookContext& context) {
  const std::string text = context.setting("hook_timeout", "30");
  unsigned seconds = 30;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::chrono::seconds(std::max(seconds, 1U));
}

}  // namespace spc
