#include "image/registry/login_check.hpp"

#include "image/registry/fetch.hpp"

namespace spc {
namespace {

class NoSink final : public FetchSink {
 public:
  HttpHandler::Take take(std::span<const std::byte>) override { return HttpHandler::Take::taken; }
};

}  // namespace

Result<LoginCheck> check_login(HttpClient& http, Log& log, const std::string& registry,
                               const Config& config, const RegistrySecret& secret) {
  ImageReference reference;
  reference.registry = SPC_TRY(parse_registry(registry));
  RegistrySession session{.http = http,
                          .log = log,
                          .registry = reference.registry,
                          .repository = "",
                          .endpoints = {endpoints_of(reference, config).back()},
                          .login_servers = config.registry(reference.registry).login_servers,
                          .ask_user = {},
                          .asked = true,
                          .secret = secret};
  NoSink sink;
  Fetch fetch(session, {.path = "", .what = "its answer", .max_size = 1 << 20}, sink);
  fetch.start();
  while (!fetch.finished()) {
    SPC_TRY(http.wait(std::chrono::milliseconds(100)));
    fetch.advance();
  }
  SPC_TRY(fetch.outcome());
  return session.access == Access::anonymous ? LoginCheck::not_needed : LoginCheck::accepted;
}

}  // namespace spc
