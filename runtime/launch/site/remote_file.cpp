#include "launch/site/remote_file.hpp"

#include <chrono>
#include <cstring>

#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/records.hpp"
#include "image/reference/file_url.hpp"
#include "protocol/user_source.hpp"
#include "task/entering/enter.hpp"
#include "task/user_identity.hpp"

namespace spc {
namespace {

constexpr std::chrono::hours kWithinStep{24 * 7};  // the step's time limit ends it before

std::string cache_of(const std::map<std::string, std::string>& environment) {
  const auto cache = environment.find("XDG_CACHE_HOME");
  if (cache != environment.end() && cache->second.starts_with('/')) return cache->second;
  const auto home = environment.find("HOME");
  const bool is_set = home != environment.end() && home->second.starts_with('/');
  return (is_set ? home->second : UserIdentity::of_this_process().home) + "/.cache";
}

Result<std::string> path_in(const RunEnd& end) {
  FetchAnswer answer;
  if (end.kind != RunEnd::Kind::exited || end.output.size() != sizeof answer) {
    return Error(ErrorKind::unavailable, "user-source exited unexpectedly");
  }
  std::memcpy(&answer, end.output.data(), sizeof answer);
  if (answer.error.is_set()) return answer.error.error();
  return answer.path.str();
}

}  // namespace

Result<std::string> bring_remote_file(const RemoteFileRequest& wanted,
                                      const std::map<std::string, std::string>& environment,
                                      Log& log) {
  const std::string program_path = own_program("user-source");
  std::string request;
  add_record(request, "image", wanted.image);
  add_record(request, "pull", name_of(wanted.pull));
  add_record(request, "since", wanted.since ? std::to_string(*wanted.since) : "");
  add_record(request, "cache", cache_of(environment));
  add_record(request, "stored", wanted.stored);
  Program program{.path = program_path,
                  .arguments = {program_path, kFetch},
                  .environment = std::vector<std::string>(),
                  .descriptors = {}};
  for (const auto& [name, value] : environment) program.environment->push_back(name + "=" + value);
  program.prepare = [] { return stay_outside().has_value(); };
  const auto tell = [&](std::string_view line) {
    const bool warns = line.starts_with(kFetchWarning);
    if (warns) line.remove_prefix(std::string_view(kFetchWarning).size());
    log.write(warns ? LogLevel::warning : LogLevel::info, printable(line));
  };
  const std::string step = "pull image " + in_quotes(without_secrets(wanted.image));
  const auto end = SPC_TRY_DURING(
      step, run_supervised(std::move(program), request,
                           {.time = kWithinStep, .output = sizeof(FetchAnswer)}, tell));
  return SPC_TRY_DURING(step, path_in(end));
}

}  // namespace spc
