// How a Fetch gets access: anonymous tokens, and the user's credentials when nothing else helps.

#include <algorithm>

#include "base/format.hpp"
#include "image/registry/fetch.hpp"
#include "image/registry/fetch_error.hpp"

namespace spc {
namespace {

constexpr int kMaxLogins = 3;

}  // namespace

Error Fetch::explain(const HttpHead& head) const {
  const bool is_verdict =
      head.status == 400 || head.status == 401 || head.status == 403 || head.status == 429;
  if (state_ != State::asking_token || is_verdict)
    return explain_status(session_, request_.what, head, small_body_);
  const auto& parameters = endpoint().bearer->parameters;
  const auto realm = parameters.find("realm");
  return std::move(Error(ErrorKind::unavailable,
                         formatted("its login server {} failed with status {}",
                                   in_quotes(realm == parameters.end() ? "" : realm->second),
                                   head.status)))
      .hint("try again later; if it persists, tell the registry's administrator");
}

/// True unless that has ended the fetch. Afterwards the session has a secret, or there is none.
/// Trouble with the user's files is only warned of where they may not be the reason at all, as with
/// a mistyped tag.
bool Fetch::ask_user(bool must_work) {
  if (!session_.asked && session_.ask_user) {
    auto secret = session_.ask_user();
    if (secret) {
      session_.secret = *std::move(secret);
    } else {
      session_.trouble = std::move(secret).error();
      if (!must_work) session_.log.write(LogLevel::warning, session_.trouble->message());
    }
  }
  session_.asked = true;
  if (session_.trouble && must_work) {
    fail(*session_.trouble);
    return false;
  }
  if (session_.user_first && !session_.secret) {
    fail(Error(ErrorKind::refused, "no credentials for the user in the image name")
             .hint("log in: scontainer login " + session_.registry));
    return false;
  }
  return true;
}

/// Whether an answer may be another one with credentials. Registries hide what is private behind
/// 404, too.
bool Fetch::may_help(const HttpHead& head) const {
  const bool is_manifest = request_.path.starts_with("manifests/");
  const bool refused =
      head.status == 403 || head.status == 429 || (head.status == 404 && is_manifest);
  return refused && state_ == State::requesting && !endpoint().is_mirror && !used_secret_ &&
         !session_.asked && origin_of(url_) == origin_of(endpoint().base_url);
}

/// After an answer to a request without credentials: asks the user and tries with them. False: he
/// has none.
bool Fetch::log_in_with_secret(bool anonymous_was_refused) {
  if (!ask_user(false) || !session_.secret) return false;
  session_.refused_anonymous = session_.refused_anonymous || anonymous_was_refused;
  if (!session_.secret->registry_token.empty() || !endpoint().bearer) {
    const RegistrySecret& secret = *session_.secret;
    if (!secret.registry_token.empty()) {
      endpoint().authorization = SecretText("Bearer " + secret.registry_token.text());
    } else if (!secret.password.empty()) {
      endpoint().authorization = basic_authorization(secret);
    } else {
      return false;  // an identity token is nothing without a login server
    }
    endpoint().authorized_by_user = true;
    ++endpoint().authorization_generation;
    request(url_);
    return true;
  }
  ask_token();
  return true;
}

void Fetch::authenticate(const HttpHead& head) {
  RegistryEndpoint& server = endpoint();
  if (origin_of(url_) != origin_of(server.base_url)) {
    return fail(Error(ErrorKind::refused, "redirects to a server that requires a login"));
  }
  // Another fetch has renewed the token since this one was sent.
  if (used_generation_ != server.authorization_generation) return request(url_);

  bool basic = false;
  server.bearer.reset();
  for (const auto& [name, value] : head.headers) {
    if (name != "www-authenticate") continue;
    for (auto& challenge : parse_challenges(value)) {
      basic = basic || challenge.scheme == "basic";
      if (challenge.scheme == "bearer" && !server.bearer) server.bearer = std::move(challenge);
    }
  }
  if ((!server.bearer && !basic) || ++logins_ > kMaxLogins) return fail(explain(head));
  if (server.is_mirror) return server.bearer ? ask_token() : fail(explain(head));

  // What was just made for this fetch does not help; a token from before may have expired.
  const bool in_vain = logins_ > 1 || (!server.bearer && used_secret_);
  if (session_.secret) {
    if (in_vain && used_secret_) return fail(explain(head));
  } else {
    if (server.bearer && !in_vain) return ask_token();
    if (!ask_user(true)) return;
    if (!session_.secret) return server.bearer ? ask_token() : fail(explain(head));
    session_.refused_anonymous = true;
  }
  if (!log_in_with_secret(false)) fail(explain(head));
}

void Fetch::ask_token() {
  RegistryEndpoint& server = endpoint();
  const RegistrySecret* secret = server.is_mirror || !session_.secret ? nullptr : &*session_.secret;
  const auto realm = server.bearer->parameters.find("realm");
  if (secret != nullptr && realm != server.bearer->parameters.end() &&
      !may_see_credentials(realm->second, server.base_url, session_.login_servers)) {
    return fail(
        Error(
            ErrorKind::refused,
            formatted("names {} as its login server, which is not trusted with credentials for {}",
                      in_quotes(realm->second), in_quotes(session_.registry)))
            .hint("the site can trust it with login_servers = [\"HOST\"] for this registry in "
                  "config.toml"));
  }
  auto http =
      token_request(*server.bearer, server.repository, server.base_url, secret, session_.scopes);
  if (!http) return fail(std::move(http).error());

  asking_with_secret_ = secret != nullptr;
  state_ = State::asking_token;
  small_body_.clear();
  http->ca = server.ca;
  http->allow_loopback = server.on_loopback;
  if (auto started = session_.http.start(*http, *this); !started) fail(std::move(started).error());
}

void Fetch::token_refused(const HttpHead& head) {
  const bool refused = head.status == 400 || head.status == 401 || head.status == 403;
  if (refused && !asking_with_secret_ && !endpoint().is_mirror && !session_.asked) {
    if (!ask_user(true)) return;
    if (session_.secret) {
      session_.refused_anonymous = true;
      return ask_token();
    }
  }
  if (refused && asking_with_secret_) {
    return fail(Error(ErrorKind::refused,
                      "the login server rejects the credentials " + described(*session_.secret))
                    .hint("log in again: scontainer login " + session_.registry));
  }
  fail(
      explain(head).during(asking_with_secret_ ? "request a token" : "request an anonymous token"));
}

void Fetch::use_token() {
  const SecretText answer(std::move(small_body_));
  small_body_.clear();
  auto token = parse_token(answer.text());
  if (!token) return fail(std::move(token).error());
  RegistryEndpoint& server = endpoint();
  server.authorization = SecretText("Bearer " + token->text());
  server.authorized_by_user = asking_with_secret_;
  ++server.authorization_generation;
  request(url_);
}

}  // namespace spc
