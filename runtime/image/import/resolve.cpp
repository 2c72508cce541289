#include "image/import/resolve.hpp"

#include <unistd.h>

#include <exception>
#include <string>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "image/config/config.hpp"
#include "image/pull/repository.hpp"
#include "image/reference/location.hpp"
#include "image/reference/request.hpp"
#include "image/registry/registry_session.hpp"
#include "image/registry/user_source_link.hpp"
#include "protocol/submit.hpp"

namespace spc {
namespace {

/// The nodes ask again, and have more to say.
class Silence final : public Log {
 public:
  void write(LogLevel, std::string_view) noexcept override {}
};

/// `user-source` is ours here, and is started when there is something to ask it.
Result<std::optional<RegistrySecret>> credentials_of_user(const ImageLocation& image, Log& log) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const std::string path = own_program("user-source");
  Program program{.path = path,
                  .arguments = {path, image.canonical()},
                  .descriptors = {{theirs.get(), kUserSourceSocket}}};
  program.group = Program::Group::own;
  const auto child = SPC_TRY(Child::start(program));
  theirs.reset();
  UserSourceLink link(ours.get(), log);
  return link.credentials(image.name.registry, image.name.user);
}

/// What the nodes would ask, by their rules.
bool is_asked(const Config& config, const ImageLocation& image, PullPolicy pull) {
  return image.kind == ImageLocation::Kind::registry && !image.name.digest &&
         config.site.importer.empty() && asks_anyway(pull);
}

Result<std::string> answer_for(const std::string& name, std::string_view pull) {
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  const auto image = SPC_TRY(ImageLocation::parse(name, config.default_registry));
  if (!is_asked(config, image, parse_pull_policy(pull).value_or(config.pull))) return std::string();
  SPC_TRY(config.submit_rules().registries.check(image.name.registry));
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_user(config)}));
  Silence log;
  Repository repository(*http, log, image.name, config,
                        [&] { return credentials_of_user(image, log); });
  const Digest digest = SPC_TRY(repository.ask_digest(image.name.tag));
  return formatted("{} {} {}@{}\n", config.tag_ttl, config.job_tag_ttl, image.canonical(),
                   digest.str());
}

}  // namespace

int answer_resolve(std::span<char*> words) noexcept {
  try {
    if (words.size() != 2) return 2;
    ::alarm(kResolveSeconds + 1);  // srun has given up before
    const auto answer = answer_for(words[0], words[1]);
    return answer && write_all(kResolveAnswer, *answer) ? 0 : 1;
  } catch (const std::exception&) {  // out of memory
    return 1;
  }
}

}  // namespace spc
