#include "image/registry/fetch_error.hpp"

#include <optional>

#include "base/format.hpp"
#include "image/registry/json.hpp"

namespace spc {
namespace {

struct RegistryReason {
  std::string code;
  std::string message;
};

/// The first entry of {"errors": [{"code": …, "message": …}]}, as far as there is one.
RegistryReason reason_in(std::string_view body) {
  RegistryReason reason;
  const auto document = parse_json_object(body, "answer");
  if (!document) return reason;
  const auto errors = document->list("errors");
  if (!errors || (*errors)->empty() || !(*errors)->front().is_object()) return reason;
  const Json& first = (*errors)->front();
  if (auto code = first.text("code"); code && *code) reason.code = **code;
  if (auto message = first.text("message"); message && *message) reason.message = **message;
  return reason;
}

}  // namespace

std::string described(const RegistrySecret& secret) {
  const std::string place = "from " + in_quotes(secret.source);
  if (secret.username.empty() || secret.username == "<token>") return place;
  return formatted("of user {} {}", in_quotes(secret.username), place);
}

namespace {

std::optional<Error> explain_status_of_web_server(const HttpHead& head) {
  if (head.status == 404) {
    return Error(ErrorKind::not_found, "no such file")
        .hint("check the URL; an image in a registry is docker://REGISTRY/NAME:TAG");
  }
  if (head.status != 401 && head.status != 403) return std::nullopt;
  return Error(ErrorKind::refused, "access is forbidden")
      .hint("no credentials are used for a URL: download the file, and use ./FILE");
}

}  // namespace

Error explain_status(const RegistrySession& session, const std::string& what, const HttpHead& head,
                     std::string_view body) {
  if (auto of_web_server =
          session.is_web_server ? explain_status_of_web_server(head) : std::nullopt)
    return *std::move(of_web_server);
  const RegistryReason reason = reason_in(body);
  const std::string said =
      reason.message.empty()
          ? ""
          : formatted(" (it says: {})", printable(reason.message).substr(0, 120));
  const std::string repository = "repository " + in_quotes(session.repository);
  const std::string log_in = "log in: scontainer login " + session.registry;
  switch (head.status) {
    case 401: {
      if (session.secret) {
        const std::string what_of_it = session.repository.empty() ? "it" : repository;
        return std::move(Error(ErrorKind::refused,
                               formatted("the credentials {} give no access to {}{}",
                                         described(*session.secret), what_of_it, said)))
            .hint("log in again: scontainer login " + session.registry);
      }
      if (head.header("www-authenticate").find("earer") == std::string_view::npos) {
        return std::move(Error(ErrorKind::refused, "login required" + said)).hint(log_in);
      }
      return std::move(Error(ErrorKind::refused,
                             formatted("{} is private or does not exist{}", repository, said)))
          .hint("check the name; for a private image, " + log_in);
    }
    case 403: {
      if (session.secret) {
        return std::move(Error(ErrorKind::refused,
                               formatted("access to {} is forbidden with the credentials {}{}",
                                         repository, described(*session.secret), said)))
            .hint("ask its owner");
      }
      return std::move(Error(ErrorKind::refused,
                             formatted("access to {} is forbidden{}", repository, said)))
          .hint(log_in + ", or ask its owner");
    }
    case 404:
      if (reason.code == "NAME_UNKNOWN") {
        return std::move(Error(ErrorKind::not_found, repository + " does not exist")
                             .hint(session.secret
                                       ? "check the spelling"
                                       : "check the spelling; for a private one, " + log_in));
      }
      if (what.starts_with("manifest")) {
        if (reason.code == "MANIFEST_UNKNOWN") {
          return std::move(Error(ErrorKind::not_found, "no such tag or digest in " + repository)
                               .hint("check the tag"));
        }
        return std::move(
            Error(ErrorKind::not_found, "not found" + said).hint("check repository and tag"));
      }
      return {ErrorKind::not_found, "missing in the registry" + said};
    case 429:
      return std::move(Error(ErrorKind::unavailable, "too many requests" + said)
                           .hint("rate limit: try later, log in or use a mirror"));
    case 400:
      if (body.find("HTTP request to an HTTPS server") != std::string_view::npos ||
          body.find("plain HTTP request was sent to HTTPS") != std::string_view::npos) {
        return std::move(
            Error(ErrorKind::refused, "speaks TLS, but the site's configuration says plain HTTP")
                .hint("remove insecure = true for this registry from config.toml"));
      }
      [[fallthrough]];
    default:
      if (head.status >= 500)
        return {ErrorKind::unavailable,
                formatted("the registry failed with status {}{}", head.status, said)};
      return {ErrorKind::unavailable, formatted("unexpected status {}{}", head.status, said)};
  }
}

}  // namespace spc
