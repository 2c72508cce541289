#include "image/registry/fetch.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <random>

#include "base/format.hpp"
#include "image/registry/fetch_error.hpp"

namespace spc {
namespace {

constexpr int kMaxTries = 4;
constexpr int kMaxRedirects = 5;
constexpr std::size_t kMaxSmallBody = 64 * 1024;
// A download that brought this much since it last broke has earned new tries.
constexpr std::uint64_t kProgress = 16 << 20;
constexpr std::chrono::seconds kLongestWait{60};

/// Retry-After: seconds or a date.
std::optional<std::chrono::seconds> asked_wait(const HttpHead& head) {
  const std::string value(head.header("retry-after"));
  if (value.empty()) return std::nullopt;
  long seconds = 0;
  if (const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
      error == std::errc{} && end == value.data() + value.size()) {
    return std::chrono::seconds(std::clamp(seconds, 0L, 1L << 30));
  }
  const std::time_t date = curl_getdate(value.c_str(), nullptr);
  if (date == -1) return std::nullopt;
  return std::chrono::seconds(std::max<std::time_t>(0, date - std::time(nullptr)));
}

/// `bytes FIRST-LAST/TOTAL` with the FIRST we asked for.
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

/// The next server is asked. One that is broken stays out of the rest, so that its time-outs are
/// waited for once.
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
  http.ca = endpoint().ca;
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
    if (end.kind == HttpEnd::Kind::failed || give_up_) return fail(std::move(error));
    return try_again(std::move(error), std::nullopt, end.kind == HttpEnd::Kind::stalled ? 2 : 1);
  }
  if (head.status == 429 && may_help(head) && log_in_with_secret(false)) return;
  if (state_ == State::finished) return;
  if (head.status == 429 || head.status >= 500) return try_again(explain(head), asked_wait(head));
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
  if (state_ != State::finished) fail(explain(head));
}

void Fetch::leave_peer(const HttpHead& head, const HttpEnd& end) {
  state_ = State::finished;
  if (end.kind != HttpEnd::Kind::complete) {
    // What is advised is about registries.
    result_ = stopped_ ? *stopped_
                       : Error::with(ErrorKind::unavailable, end.error->sys_errno(),
                                     end.error->what(), "");
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
    return fail(Error(ErrorKind::unavailable, "redirects more than 5 times"));
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

void Fetch::try_again(Error error, std::optional<std::chrono::seconds> asked_wait, int cost) {
  if (endpoint().is_mirror) return leave_mirror(std::move(error), true);
  if (request_.once)
    return fail(Error::with(ErrorKind::unavailable, 0, error.what(), error.advice()));
  if (received_ - tries_counted_from_ >= kProgress) tries_ = 1;
  tries_counted_from_ = received_;
  if (tries_ >= kMaxTries)
    return fail(std::move(error).hint(formatted("gave up after {} attempts", tries_)));
  if (asked_wait && *asked_wait > kLongestWait) {
    return fail(
        std::move(error).hint(formatted("retry after {} s as requested", asked_wait->count())));
  }
  // 0.25, 1, 4 s, and up to half as much again, so that the nodes of a job do not come back at the
  // same moment.
  auto own_wait = std::chrono::milliseconds(250) * (1 << (2 * (tries_ - 1)));
  own_wait += own_wait * static_cast<int>(std::random_device{}() % 100) / 200;
  const auto wait =
      asked_wait ? std::chrono::duration_cast<std::chrono::milliseconds>(*asked_wait) : own_wait;
  tries_ = std::min(tries_ + cost, kMaxTries);
  if (state_ == State::asking_token) --logins_;  // it was none: the next try may ask again
  state_ = State::waiting;
  due_ = Clock::now() + wait;
  char seconds[16];
  std::snprintf(seconds, sizeof seconds, "%.3g", static_cast<double>(wait.count()) / 1000);
  session_.log.write(LogLevel::info,
                     formatted("{}: retrying in {} s ({} of {})", about(std::move(error)).message(),
                               seconds, tries_, kMaxTries));
}

void Fetch::fail(Error error) {
  if (endpoint().is_mirror) {
    const bool is_broken =
        error.kind() != ErrorKind::not_found && error.kind() != ErrorKind::refused;
    return leave_mirror(std::move(error), is_broken);
  }
  state_ = State::finished;
  result_ = about(std::move(error));
}

Error Fetch::about(Error error) const {
  std::string from = (sends()                  ? " to registry "
                      : session_.is_web_server ? " from "
                                               : " from registry ") +
                     in_quotes(session_.registry);
  if (endpoint().is_mirror) from += ", mirror " + in_quotes(endpoint().name);
  if (const std::string origin = origin_of(url_);
      !origin.empty() && origin != origin_of(endpoint().base_url)) {
    from += ", redirected to " + in_quotes(origin);
  }
  const std::string action = session_.repository.empty() ? "log in"
                                                         : (sends()         ? "push "
                                                            : request_.head ? "resolve "
                                                                            : "fetch ") +
                                                               request_.what;
  return std::move(error).during(action + (session_.repository.empty()
                                               ? " to registry " + in_quotes(session_.registry)
                                               : from));
}

}  // namespace spc
