// Client of a registry: the servers of an image, the fetch of one object with login and retries,
// and the link to the user's process, which provides credentials and local images.

#include "registry/client.hpp"

#include <curl/curl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <optional>
#include <random>

#include "base/format.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "registry/manifest.hpp"

namespace spc {

// --- user source link ---

namespace {

// user-source fails the request within three seconds
constexpr std::chrono::milliseconds kTrackerPatience{3500};

bool is_socket(int fd) {
  struct stat status {};
  return fd >= 0 && ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

template <std::size_t Size>
Result<void> put(Text<Size>& into, std::string_view text) {
  if (!Text<Size>::fits(text)) return Error(ErrorKind::invalid, in_quotes(text) + ": is too long");
  into.set(text);
  return {};
}

Result<void> wait_readable(int socket, std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
            .count();
    if (left <= 0) return Error(ErrorKind::unavailable, "no response");
    pollfd watched{socket, POLLIN, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(left));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Error::from_errno(errno, "wait for it");
  }
}

}  // namespace

UserSourceLink::UserSourceLink(int socket, Log& log, std::chrono::seconds patience)
    : socket_(is_socket(socket) ? socket : -1), log_(log), patience_(patience) {}

Result<UserSourceLink::Answer> UserSourceLink::ask(const UserSourceMessage& question,
                                                   std::chrono::milliseconds patience) {
  const std::string step = "query user-source";
  const auto none = [] { return Answer{{.kind = UserSourceKind::none}, {}}; };
  if (auto sent = send_struct(socket_, question); !sent) {
    if (sent.error().sys_errno() == EPIPE) return none();
    return std::move(sent).error().during(step);
  }
  for (;;) {
    Answer answer;
    SPC_TRY_DURING(step, wait_readable(socket_, std::chrono::steady_clock::now() + patience));
    auto received = receive_struct(socket_, answer.message, 1);
    // The user's side has closed the socket with the question unread, as with EPIPE above.
    if (!received && received.error().sys_errno() == ECONNRESET) return none();
    answer.descriptors = SPC_TRY_DURING(step, std::move(received));
    // Skip the late answer to an earlier question that has timed out.
    if (answer.message.kind == UserSourceKind::tracker_answer &&
        question.kind != UserSourceKind::ask_tracker)
      continue;
    if (answer.message.kind != UserSourceKind::progress) return answer;
    log_.write(LogLevel::info, printable(answer.message.text.view()));
  }
}

Result<std::optional<RegistrySecret>> UserSourceLink::credentials(std::string_view registry,
                                                                  std::string_view user) {
  std::optional<RegistrySecret> none;
  if (!connected()) return none;
  UserSourceMessage question;
  question.kind = UserSourceKind::credentials;
  SPC_TRY(put(question.text, registry));
  SPC_TRY(put(question.user, user));
  const Answer answer = SPC_TRY(ask(question));
  if (answer.message.kind == UserSourceKind::none) return none;
  if (answer.message.kind == UserSourceKind::failed) return answer.message.error.error();
  if (answer.message.kind != UserSourceKind::secret || answer.descriptors.size() != 1) {
    return Error(ErrorKind::internal, "query user-source: unexpected reply");
  }
  return std::optional(SPC_TRY(RegistrySecret::from_file(answer.descriptors.front().get())));
}

Result<std::optional<UserSourceLink::Part>> UserSourceLink::document() {
  UserSourceMessage question;
  question.kind = UserSourceKind::document;
  return ask_part(question);
}

Result<std::optional<UserSourceLink::Part>> UserSourceLink::blob(const Digest& digest) {
  UserSourceMessage question;
  question.kind = UserSourceKind::blob;
  question.digest = digest;
  return ask_part(question);
}

Result<TrackerRecord> UserSourceLink::ask_tracker(const TrackerRecord& question) {
  if (!connected()) return Error(ErrorKind::unavailable, "no credential helper is connected");
  UserSourceMessage asked;
  asked.kind = UserSourceKind::ask_tracker;
  asked.tracker = question;
  const Answer answer = SPC_TRY(ask(asked, kTrackerPatience));
  if (answer.message.kind == UserSourceKind::failed) return answer.message.error.error();
  if (answer.message.kind != UserSourceKind::tracker_answer)
    return Error(ErrorKind::unavailable, "no connection to srun");
  if (answer.message.tracker.kind != TrackerKind::place ||
      answer.message.tracker.count > kMostSources) {
    return Error(ErrorKind::invalid, "srun gives no place");
  }
  return answer.message.tracker;
}

Result<void> UserSourceLink::tell_tracker(const TrackerRecord& record) {
  if (!connected()) return {};
  UserSourceMessage told;
  told.kind = UserSourceKind::tell_tracker;
  told.tracker = record;
  return send_struct(socket_, told, {}, WhenFull::fail);
}

Result<std::optional<UserSourceLink::Part>> UserSourceLink::ask_part(
    const UserSourceMessage& question) {
  std::optional<Part> none;
  if (!connected()) return none;
  Answer answer = SPC_TRY(ask(question));
  const UserSourceMessage& message = answer.message;
  if (message.kind == UserSourceKind::none) return none;
  if (message.kind == UserSourceKind::failed) return message.error.error();
  if (message.kind != UserSourceKind::file || answer.descriptors.size() != 1) {
    return Error(ErrorKind::internal, "query user-source: unexpected reply");
  }
  return std::optional(Part{.file = std::move(answer.descriptors.front()),
                            .offset = message.offset,
                            .size = message.size,
                            .media_type = printable(message.text.view())});
}

// --- registry session ---

namespace {

RegistryEndpoint endpoint(const std::string& host, const RegistryConfig& config) {
  RegistryEndpoint endpoint;
  endpoint.base_url = (config.insecure ? "http://" : "https://") + host;
  endpoint.tls = tls_of(config);
  return endpoint;
}

HttpProxies completed(HttpProxies proxies, const Config& config) {
  if (proxies.https.empty()) proxies.https = config.https_proxy;
  if (proxies.http.empty()) proxies.http = config.http_proxy;
  for (const std::string& host : config.no_proxy) proxies.except += "," + host;
  return proxies;
}

}  // namespace

std::vector<RegistryEndpoint> endpoints_of(const ImageReference& reference, const Config& config) {
  const RegistryConfig& registry = config.registry(reference.registry);
  std::vector<RegistryEndpoint> endpoints;
  for (const auto& mirror : config.mirrors_of(reference.registry, reference.repository).list) {
    RegistryEndpoint& added =
        endpoints.emplace_back(endpoint(mirror.host, config.registry(mirror.host)));
    added.name = mirror.name;
    added.repository = mirror.repository;
    added.is_mirror = true;
  }
  RegistryEndpoint& itself = endpoints.emplace_back(endpoint(reference.api_host(), registry));
  itself.name = reference.registry;
  itself.repository = reference.repository;
  return endpoints;
}

HttpProxies proxies_of_site(const Config& config) { return completed({}, config); }
HttpProxies proxies_of_user(const Config& config) {
  return completed(HttpProxies::of_environment(), config);
}

// --- fetch errors ---

namespace {

constexpr std::string_view kNameUnknown = "NAME_UNKNOWN";

struct RegistryReason {
  std::string code;
  std::string message;
};

/// Returns the first entry of {"errors": [{"code": …, "message": …}]}. Missing members stay empty.
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

Error explain_status(const RegistrySession& session, bool is_manifest, const HttpHead& head,
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
            .hint("ask its owner for access");
      }
      return std::move(Error(ErrorKind::refused,
                             formatted("access to {} is forbidden{}", repository, said)))
          .hint(log_in + ", or ask its owner");
    }
    case 404:
      if (reason.code == kNameUnknown) {
        return std::move(Error(ErrorKind::not_found, repository + " does not exist")
                             .hint(session.secret
                                       ? "check the spelling"
                                       : "check the spelling; for a private one, " + log_in));
      }
      if (is_manifest) {
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
                           .hint("rate limit: try later, log in or use a mirror: "
                                 "spank-container-faq(7), \"Rate limit\""));
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

// --- fetch ---

namespace {

constexpr int kMaxTries = 4;
constexpr int kMaxRedirects = 10;  // as Go's clients
constexpr std::size_t kMaxSmallBody = 64 * 1024;
// Bytes of progress since the last failure that reset the number of attempts.
constexpr std::uint64_t kProgress = 16 << 20;
constexpr std::chrono::seconds kLongestWait{60};

/// Returns the wait that Retry-After requests, in seconds or as a date.
std::optional<std::chrono::seconds> asked_wait(const HttpHead& head) {
  const std::string value(head.header("retry-after"));
  if (value.empty()) return std::nullopt;
  if (const auto seconds = parse_number<long>(value))
    return std::chrono::seconds(std::clamp(*seconds, 0L, 1L << 30));
  const std::time_t date = curl_getdate(value.c_str(), nullptr);
  if (date == -1) return std::nullopt;
  return std::chrono::seconds(std::max<std::time_t>(0, date - std::time(nullptr)));
}

/// Returns the keys of the server at `url`, with or without its scheme's default port.
const RegistryConfig& keys_of(const Config* config, const std::string& url) {
  static const RegistryConfig kNone;
  if (config == nullptr) return kNone;
  for (const bool with_port : {false, true}) {
    const auto name = parse_registry(registry_of(url, with_port));
    const auto found = name ? config->registries.find(*name) : config->registries.end();
    if (found != config->registries.end()) return found->second;
  }
  return kNone;
}

/// Returns whether Content-Range is `bytes FIRST-LAST/TOTAL` with `first` as its FIRST.
bool is_range_from(std::string_view header, std::uint64_t first) {
  const std::string start = formatted("bytes {}-", first);
  return header.starts_with(start);
}

}  // namespace

Fetch::Fetch(RegistrySession& session, FetchRequest request, FetchSink& sink)
    : session_(session), request_(std::move(request)), sink_(sink), received_(request_.begin_at) {}

Fetch::~Fetch() { session_.http.cancel(*this); }

void Fetch::choose_endpoint() {
  const auto usable = [&](const RegistryEndpoint& candidate) {
    return !candidate.is_mirror || (!candidate.gave_up && !request_.not_from_mirrors);
  };
  while (!usable(endpoint())) ++at_;
}

void Fetch::start() {
  tries_ = 1;
  choose_endpoint();
  if (session_.user_first && !endpoint().is_mirror && !ask_user(true)) return;
  begin();
}

void Fetch::advance() {
  if (state_ != State::waiting || Clock::now() < due_) return;
  redirects_ = 0;
  begin();
}

/// Switches to the next server. A broken mirror is skipped in the rest of the session, so that its
/// time-outs are waited for once.
void Fetch::leave_mirror(Error error, bool is_broken) {
  if (is_broken && !endpoint().gave_up) {
    endpoint().gave_up = true;
    session_.log.write(LogLevel::info, about(std::move(error)).message() + ": trying the next one");
  }
  ++at_;
  redirects_ = 0;
  logins_ = 0;
  ranges_work_ = true;
  start();
}

Result<HttpHead> Fetch::result() {
  if (!result_) return Error(ErrorKind::internal, "a fetch was asked for its result too early");
  return *std::move(result_);
}

Result<void> Fetch::outcome() {
  SPC_TRY(result());
  return {};
}

void Fetch::request(const std::string& url) {
  state_ = State::requesting;
  url_ = url;
  small_body_.clear();
  stopped_.reset();
  give_up_ = false;
  skip_ = 0;
  body_begun_ = false;
  repository_unknown_ = false;

  const bool at_home = origin_of(url) == origin_of(endpoint().base_url);
  HttpRequest http;
  http.url = url;
  http.head = request_.head;
  http.accept = request_.accept;
  http.method = request_.method;
  if (sends()) http.upload = request_.upload;
  if (at_home) {
    http.authorization = endpoint().authorization.text();
    used_secret_ = endpoint().authorized_by_user;
  }
  http.range_from = ranges_work_ ? received_ : 0;
  http.range_end = ranges_work_ ? request_.end_at : 0;
  http.tls = at_home ? endpoint().tls : tls_of(keys_of(session_.config, url));
  if (http.tls.ca.empty()) http.tls.ca = endpoint().tls.ca;
  http.is_peer = endpoint().is_peer;
  http.allow_loopback = at_home || endpoint().on_loopback;
  used_generation_ = endpoint().authorization_generation;
  if (auto started = session_.http.start(http, *this); !started) fail(std::move(started).error());
}

HttpHandler::Take Fetch::body(const HttpHead& head, std::span<const std::byte> bytes) {
  if (state_ == State::requesting && !sends() && (head.status == 200 || head.status == 206))
    return wanted_body(head, bytes);
  if (small_body_.size() + bytes.size() > kMaxSmallBody) {
    give_up_ = true;
    stopped_ = Error(ErrorKind::unavailable, "sends an endless response");
    return Take::stop;
  }
  small_body_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Take::taken;
}

HttpHandler::Take Fetch::wanted_body(const HttpHead& head, std::span<const std::byte> bytes) {
  if (!body_begun_) {
    body_begun_ = true;
    logins_ = 0;
    if (head.status == 206 &&
        (received_ == 0 || !is_range_from(head.header("content-range"), received_))) {
      ranges_work_ = false;
      stopped_ = Error(ErrorKind::unavailable, "sent a different range than requested");
      return Take::stop;
    }
    if (head.status == 200 && request_.end_at > 0) {
      give_up_ = true;
      stopped_ = Error(ErrorKind::refused, "does not support ranges");
      return Take::stop;
    }
    skip_ = head.status == 200 ? received_ : 0;
  }
  const std::uint64_t skipped = std::min<std::uint64_t>(skip_, bytes.size());
  const auto fresh = bytes.subspan(static_cast<std::size_t>(skipped));
  const std::uint64_t limit = request_.exact_size.value_or(request_.max_size);
  if (fresh.size() > limit - received_) {
    give_up_ = true;
    stopped_ = Error(ErrorKind::corrupt,
                     request_.exact_size ? formatted("is longer than the {} bytes expected", limit)
                                         : formatted("is longer than {} bytes", limit));
    return Take::stop;
  }
  if (!fresh.empty()) {
    const Take taken = sink_.take(fresh);
    if (taken != Take::taken) return taken;
  }
  skip_ -= skipped;
  received_ += fresh.size();
  return Take::taken;
}

void Fetch::ended(const HttpHead& head, HttpEnd end) {
  if (state_ == State::finished) return;
  if (endpoint().is_peer &&
      (end.kind != HttpEnd::Kind::complete || (head.status != 200 && head.status != 206))) {
    return leave_peer(head, end);
  }
  if (state_ == State::requesting && redirects_ == 0 && head.status != 0)
    endpoint().on_loopback = end.from_loopback;
  if (end.kind != HttpEnd::Kind::complete) {
    Error error = stopped_ ? *std::move(stopped_) : *std::move(end.error);
    if (state_ == State::asking_token)
      error = Error(std::move(error).during("login server " + in_quotes(registry_of(token_url_))));
    if (end.kind == HttpEnd::Kind::failed || give_up_) return fail(std::move(error));
    return try_again(std::move(error), std::nullopt, end.kind == HttpEnd::Kind::stalled ? 2 : 1);
  }
  if (head.status == 429 && may_help(head) && log_in_with_secret(false)) return;
  if (state_ == State::finished) return;
  if (head.status == 429 || head.status >= 500)
    return try_again(explain(head), asked_wait(head), 1, true);
  if (state_ == State::asking_token && !end.redirect.empty()) return follow_login_server(end);
  if (state_ == State::asking_token) return head.status == 200 ? use_token() : token_refused(head);
  if (head.status >= 300 && head.status < 400) return follow(head, end);
  if (head.status == 401) return authenticate(head);
  if (head.status == 416 && ranges_work_ && received_ > 0) {
    ranges_work_ = false;
    return try_again(Error(ErrorKind::unavailable, "does not support ranges"), std::nullopt);
  }
  if (head.status == 200 || head.status == 206) return complete(head);
  if (sends() && head.status > 200 && head.status < 300) return complete(head);
  if (may_help(head) && log_in_with_secret(true)) return;
  if (sends() && head.status != 403 && head.status != 404 && head.status != 416 &&
      state_ != State::finished) {
    return fail(Error(ErrorKind::refused, explain(head).what()));
  }
  if (state_ == State::finished) return;
  repository_unknown_ = head.status == 404 && reason_in(small_body_).code == kNameUnknown;
  fail(explain(head), true);
}

void Fetch::leave_peer(const HttpHead& head, const HttpEnd& end) {
  state_ = State::finished;
  if (end.kind != HttpEnd::Kind::complete) {
    // Drop the hint: it is about registries.
    result_ = stopped_ ? *stopped_
                       : Error(ErrorKind::unavailable, end.error->what(), end.error->sys_errno());
  } else {
    result_ = Error(head.status == 404 ? ErrorKind::not_found : ErrorKind::refused,
                    formatted("answers with status {}", head.status));
  }
}

void Fetch::follow(const HttpHead& head, const HttpEnd& end) {
  if (end.redirect.empty()) {
    return fail(Error(ErrorKind::unavailable,
                      formatted("redirects (status {}) without a location", head.status)));
  }
  if (++redirects_ > kMaxRedirects)
    return fail(Error(ErrorKind::unavailable, "redirects more than 10 times"));
  const std::string to = origin_of(end.redirect);
  if (to.empty())
    return fail(Error(
        ErrorKind::refused,
        formatted("redirects to {}, which is not an http or https URL", in_quotes(end.redirect))));
  if (url_.starts_with("https:") && !to.starts_with("https:")) {
    return fail(
        Error(ErrorKind::refused,
              formatted("redirects from https to {}, which is not encrypted", in_quotes(to))));
  }
  request(end.redirect);
}

void Fetch::complete(const HttpHead& head) {
  if (!request_.head && request_.exact_size && received_ != *request_.exact_size) {
    return fail(Error(ErrorKind::corrupt,
                      formatted("has {} bytes instead of {}", received_, *request_.exact_size))
                    .hint("the registry or a proxy changed it"));
  }
  if (used_secret_)
    session_.access = session_.refused_anonymous ? Access::refused_to_anonymous : Access::not_known;
  state_ = State::finished;
  result_ = head;
}

void Fetch::try_again(Error error, std::optional<std::chrono::seconds> asked_wait, int cost,
                      bool is_answer) {
  if (endpoint().is_mirror) return leave_mirror(std::move(error), true);
  if (request_.once)
    return fail(Error(ErrorKind::unavailable, error.what(), 0, error.advice()), is_answer);
  if (received_ - tries_counted_from_ >= kProgress) tries_ = 1;
  tries_counted_from_ = received_;
  if (tries_ >= kMaxTries)
    return fail(std::move(error).hint(formatted("gave up after {} attempts", tries_)), is_answer);
  if (asked_wait && *asked_wait > kLongestWait) {
    return fail(
        std::move(error).hint(formatted("retry after {} s as requested", asked_wait->count())),
        is_answer);
  }
  // Wait 0.25, 1, 4 s plus a random part of up to 50 %, so that the nodes of a job do not retry
  // simultaneously.
  auto own_wait = std::chrono::milliseconds(250) * (1 << (2 * (tries_ - 1)));
  own_wait += own_wait * static_cast<int>(std::random_device{}() % 100) / 200;
  const auto wait =
      asked_wait ? std::chrono::duration_cast<std::chrono::milliseconds>(*asked_wait) : own_wait;
  tries_ = std::min(tries_ + cost, kMaxTries);
  // the login did not happen: the next attempt may repeat it
  if (state_ == State::asking_token) --logins_;
  state_ = State::waiting;
  due_ = Clock::now() + wait;
  char seconds[16];
  std::snprintf(seconds, sizeof seconds, "%.3g", static_cast<double>(wait.count()) / 1000);
  session_.log.write(LogLevel::info,
                     formatted("{}: retrying in {} s ({} of {})", about(std::move(error)).message(),
                               seconds, tries_, kMaxTries));
}

/// `is_answer`: the error is the registry's answer about the image and needs no other subject.
void Fetch::fail(Error error, bool is_answer) {
  if (endpoint().is_mirror) {
    const bool is_broken =
        error.kind() != ErrorKind::not_found && error.kind() != ErrorKind::refused;
    return leave_mirror(std::move(error), is_broken);
  }
  state_ = State::finished;
  if (!request_.is_image) {
    result_ = about(std::move(error));
  } else if (const std::string via = detour(); is_answer && via.empty()) {
    result_ = std::move(error);
  } else {
    result_ = std::move(error).during("registry " + in_quotes(session_.registry) + via);
  }
}

/// Returns the server that answers instead of the registry, for messages. Empty if none does.
std::string Fetch::detour() const {
  std::string via;
  if (endpoint().is_mirror) via += ", mirror " + in_quotes(endpoint().name);
  if (const std::string origin = origin_of(url_);
      !origin.empty() && origin != origin_of(endpoint().base_url)) {
    via += ", redirected to " + in_quotes(origin);
  }
  return via;
}

Error Fetch::about(Error error) const {
  std::string from = (sends()                  ? " to registry "
                      : session_.is_web_server ? " from "
                                               : " from registry ") +
                     in_quotes(session_.registry) + detour();
  const std::string action = session_.repository.empty() ? "log in"
                                                         : (sends()         ? "push "
                                                            : request_.head ? "resolve "
                                                                            : "fetch ") +
                                                               request_.what;
  return std::move(error).during(action + (session_.repository.empty()
                                               ? " to registry " + in_quotes(session_.registry)
                                               : from));
}

// --- fetch login ---

// Login: anonymous tokens first, the user's credentials only if they are refused.

namespace {

constexpr int kMaxLogins = 3;

/// Replaces the login server of `challenge` with that of the challenge `before`. nvcr.io names
/// another one when a token has expired, which gives anonymous clients no token.
void keep_login_server(const Challenge& before, Challenge& challenge) {
  for (const char* const name : {"realm", "service"}) {
    challenge.parameters.erase(name);
    const auto found = before.parameters.find(name);
    if (found != before.parameters.end()) challenge.parameters.insert(*found);
  }
}

}  // namespace

Error Fetch::explain(const HttpHead& head) const {
  const bool is_verdict =
      head.status == 400 || head.status == 401 || head.status == 403 || head.status == 429;
  if (state_ != State::asking_token || is_verdict)
    return explain_status(session_, is_manifest(), head, small_body_);
  const auto& parameters = endpoint().bearer->parameters;
  const auto realm = parameters.find("realm");
  return std::move(Error(ErrorKind::unavailable,
                         formatted("its login server {} failed with status {}",
                                   in_quotes(realm == parameters.end() ? "" : realm->second),
                                   head.status)))
      .hint("try again later; if it persists, tell the registry's administrator");
}

/// Requests the user's credentials once per session. Returns false if that ended the fetch with an
/// error. With `must_work` false, an unusable credential file only causes a warning: it may not be
/// the reason of the refusal, as with a mistyped tag.
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
    fail(*session_.trouble, true);
    return false;
  }
  if (session_.user_first && !session_.secret) {
    fail(Error(ErrorKind::refused, "no credentials for the user in the image name")
             .hint("log in: scontainer login " + session_.registry),
         true);
    return false;
  }
  return true;
}

/// Returns whether credentials may change the response. Registries hide private repositories behind
/// 404 as well.
bool Fetch::may_help(const HttpHead& head) const {
  const bool refused =
      head.status == 403 || head.status == 429 || (head.status == 404 && is_manifest());
  return refused && state_ == State::requesting && !endpoint().is_mirror && !used_secret_ &&
         !session_.asked && origin_of(url_) == origin_of(endpoint().base_url);
}

/// Requests the user's credentials after an anonymous request was refused, and repeats the request
/// with them. Returns false if the user has none.
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
      return false;  // an identity token needs a login server
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
  // Another fetch has renewed the token since this request was sent.
  if (used_generation_ != server.authorization_generation) return request(url_);

  bool basic = false;
  const auto before = std::exchange(server.bearer, std::nullopt);
  for (const auto& [name, value] : head.headers) {
    if (name != "www-authenticate") continue;
    for (auto& challenge : parse_challenges(value)) {
      basic = basic || challenge.scheme == "basic";
      if (challenge.scheme == "bearer" && !server.bearer) server.bearer = std::move(challenge);
    }
  }
  const bool may_be_moved = logins_ + 1 == kMaxLogins;
  if (before && server.bearer && !may_be_moved) keep_login_server(*before, *server.bearer);
  if ((!server.bearer && !basic) || ++logins_ > kMaxLogins) return fail(explain(head), true);
  if (server.is_mirror) return server.bearer ? ask_token() : fail(explain(head), true);

  // A token obtained for this fetch was refused. An older one may just have expired.
  const bool in_vain = logins_ > 1 || (!server.bearer && used_secret_);
  if (session_.secret) {
    if (in_vain && used_secret_) return fail(explain(head), true);
  } else {
    if (server.bearer && !in_vain) return ask_token();
    if (!ask_user(true)) return;
    if (!session_.secret) return server.bearer ? ask_token() : fail(explain(head), true);
    session_.refused_anonymous = true;
  }
  if (!log_in_with_secret(false)) fail(explain(head), true);
}

/// A login server is configured as registries are, by its HOST[:PORT].
void Fetch::ask_token(const std::string& redirected) {
  RegistryEndpoint& server = endpoint();
  const RegistrySecret* secret = server.is_mirror || !session_.secret ? nullptr : &*session_.secret;
  const auto found = server.bearer->parameters.find("realm");
  const std::string realm = found != server.bearer->parameters.end() ? found->second : "";
  const RegistryConfig& keys = keys_of(session_.config, realm);
  if (keys.blocked) {
    return fail(Error(ErrorKind::refused, "this site does not allow its login server " +
                                              in_quotes(registry_of(realm))));
  }
  if (secret != nullptr && !realm.empty() &&
      !may_see_credentials(realm, server.base_url,
                           session_.config != nullptr
                               ? session_.config->registry(session_.registry).login_servers
                               : std::vector<std::string>(),
                           keys.insecure)) {
    return fail(
        Error(
            ErrorKind::refused,
            formatted("names {} as its login server, which is not trusted with credentials for {}",
                      in_quotes(realm), in_quotes(session_.registry)))
            .hint("the site can trust it with login_servers = [\"HOST\"] for this registry in "
                  "config.toml"));
  }
  auto http = token_request(*server.bearer, server.repository, server.base_url, secret,
                            session_.scopes, keys.insecure);
  if (!http) return fail(std::move(http).error());

  asking_with_secret_ = secret != nullptr;
  state_ = State::asking_token;
  small_body_.clear();
  if (redirected.empty()) {
    token_redirects_ = 0;
  } else {
    http->url = redirected;
  }
  token_url_ = http->url;
  http->tls = tls_of(keys);
  if (http->tls.ca.empty()) http->tls.ca = server.tls.ca;
  http->allow_loopback = server.on_loopback;
  http->server = "login server";
  if (auto started = session_.http.start(*http, *this); !started) fail(std::move(started).error());
}

/// Follows a redirect of a token request within the login server's origin. The request may carry
/// credentials.
void Fetch::follow_login_server(const HttpEnd& end) {
  const std::string server = "its login server " + in_quotes(registry_of(token_url_));
  if (origin_of(end.redirect) != origin_of(token_url_)) {
    return fail(Error(ErrorKind::refused, formatted("{} redirects to another server, {}", server,
                                                    in_quotes(origin_of(end.redirect)))));
  }
  if (++token_redirects_ > kMaxRedirects)
    return fail(Error(ErrorKind::unavailable, server + " redirects more than 10 times"));
  ask_token(end.redirect);
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
                    .hint("log in again: scontainer login " + session_.registry),
                true);
  }
  fail(explain(head).during(asking_with_secret_ ? "request a token" : "request an anonymous token"),
       true);
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

// --- login check ---

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
                          .config = &config,
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
