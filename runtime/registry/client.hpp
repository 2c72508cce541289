#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "protocol/user_source.hpp"
#include "reference/reference.hpp"
#include "registry/challenge.hpp"
#include "registry/http.hpp"

namespace spc {

// --- user source link ---

/// The importer's end of protocol/user_source.hpp. Every request waits for its reply, because the
/// user's process may have to run programs first. A request fails after `patience` without a
/// message. Replies are untrusted.
class UserSourceLink {
 public:
  /// `socket` and `log` are borrowed. The progress of long operations is written to `log`. If the
  /// descriptor is not a socket, or its other end is closed, requests for credentials and image
  /// parts return an empty optional.
  UserSourceLink(int socket, Log& log, std::chrono::seconds patience = std::chrono::seconds(90));

  [[nodiscard]] bool connected() const { return socket_ >= 0; }

  /// Returns the user's credentials for `registry` (HOST[:PORT]), only those of `user` unless that
  /// is empty. Returns an empty optional if the user has none.
  Result<std::optional<RegistrySecret>> credentials(std::string_view registry,
                                                    std::string_view user);

  /// `size` bytes at `offset` of `file`, which the user can change at any time.
  struct Part {
    UniqueFd file;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::string media_type;  ///< empty: unknown
  };
  /// Returns the image's manifest or index.
  Result<std::optional<Part>> document();
  /// Returns a manifest, configuration or layer of this image.
  Result<std::optional<Part>> blob(const Digest& digest);

  /// Sends a join or more record to the step's srun (protocol/tracker.hpp) and returns the place
  /// that srun assigns to this node. user-source fails the request if srun does not answer within
  /// two seconds. After an error the node starts alone and should not ask again.
  Result<TrackerRecord> ask_tracker(const TrackerRecord& question);
  /// Sends a progress, done or left record to srun. Never blocks: if the socket's buffer is full,
  /// the record is lost and an error is returned.
  Result<void> tell_tracker(const TrackerRecord& record);

 private:
  struct Answer {
    UserSourceMessage message;
    std::vector<UniqueFd> descriptors;
  };
  Result<Answer> ask(const UserSourceMessage& question, std::chrono::milliseconds patience);
  Result<Answer> ask(const UserSourceMessage& question) { return ask(question, patience_); }
  Result<std::optional<Part>> ask_part(const UserSourceMessage& question);

  int socket_;
  Log& log_;
  std::chrono::seconds patience_;
};

// --- registry session ---

/// Access rights to the fetched objects.
enum class Access {
  anonymous,             ///< all users: anonymous access was sufficient
  refused_to_anonymous,  ///< holders of these credentials: anonymous access was refused
  not_known,             ///< holders of these credentials; anonymous access was not tried
};

/// Returns the files of a registry for TLS.
inline TlsFiles tls_of(const RegistryConfig& keys) {
  return {keys.ca, keys.client_cert, keys.client_key};
}

/// One server for a repository: the registry itself or a mirror.
struct RegistryEndpoint {
  std::string name;        ///< HOST[:PORT][/PREFIX], for messages
  std::string base_url;    ///< scheme and host
  std::string repository;  ///< the repository's name on this server
  TlsFiles tls;
  bool is_mirror = false;  ///< gets no credentials; on failure the next server is tried
  bool is_peer = false;    ///< another node of the step: any failure ends the fetch without a retry
  bool gave_up = false;    ///< a failed mirror is skipped
  bool on_loopback = false;  ///< a service of this node, so it may redirect to this node

  // Authentication, as far as known.
  std::optional<Challenge> bearer;
  SecretText authorization;         ///< header value; empty: none
  bool authorized_by_user = false;  ///< made from the user's secret
  /// number of renewals, so that parallel fetches renew it once
  unsigned authorization_generation = 0;

  [[nodiscard]] std::string url() const {
    return base_url + "/v2/" + repository + (repository.empty() ? "" : "/");
  }
};

/// Shared state of the requests to one repository.
struct RegistrySession {
  HttpClient& http;
  Log& log;                    ///< reports retries
  std::string registry;        ///< HOST[:PORT] as given by the user
  std::string repository;      ///< empty: login only
  bool is_web_server = false;  ///< serves a plain file and gets no credentials
  std::vector<RegistryEndpoint>
      endpoints;  ///< tried in this order; the last is the registry itself
  std::vector<std::string>
      scopes;  ///< requested token scopes; empty: those the registry names, or pull
  const Config* config = nullptr;  ///< keys of the registry and its login servers; null: none

  /// Requests credentials from the user; empty if there is no user. Called at most once.
  std::function<Result<std::optional<RegistrySecret>>()> ask_user;
  bool user_first = false;  ///< the user named the credentials: skip the anonymous attempt
  bool asked = false;
  std::optional<RegistrySecret> secret;
  std::optional<Error> trouble;  ///< error of `ask_user`, reported if credentials are needed
  bool refused_anonymous = false;
  Access access = Access::anonymous;  ///< set once credentials were used, and never reset
};

/// Returns the configured servers for an image: the mirrors, then the registry.
std::vector<RegistryEndpoint> endpoints_of(const ImageReference& reference, const Config& config);

/// Returns the site's proxies. Shared images use only these: a user's proxy must not influence
/// them.
HttpProxies proxies_of_site(const Config& config);
/// Returns the environment's proxies, completed by the site's. For images of this user only.
HttpProxies proxies_of_user(const Config& config);

// --- fetch ---

/// Receiver of the requested bytes, in order and each once.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  virtual HttpHandler::Take take(std::span<const std::byte> bytes) = 0;
};

struct FetchRequest {
  std::string path;       ///< below /v2/REPOSITORY/
  std::string what;       ///< in messages: `manifest "registry:5000/x:1"`
  bool is_image = false;  ///< `what` is the image: the caller's message names it
  bool head = false;
  std::string accept;
  std::uint64_t max_size = 0;               ///< a longer body is an error
  std::optional<std::uint64_t> exact_size;  ///< if known, any other size is an error
  bool not_from_mirrors = false;            ///< only the registry itself may answer
  std::string method;  ///< for uploads: the method that sends `upload`; any 2xx status is a success
  HttpUpload upload;
  std::string url;  ///< replaces `path`: the upload location that the registry named
  /// no retries: a broken connection or a server failure is ErrorKind::unavailable
  bool once = false;
  std::uint64_t begin_at = 0;  ///< offset of the first byte to fetch; the sink has those before it
  /// > 0: only the bytes from begin_at (> 0) up to this offset; without ranges it is an error.
  /// exact_size is the same offset.
  std::uint64_t end_at = 0;
};

/// One fetch from a registry or its mirrors. It handles
///  - mirrors: if one lacks the object or fails, the next server is tried, and may resume a partial
///    download;
///  - login at the registry: first without credentials or with an anonymous token. If that is
///    refused (401, 403, 404 of a manifest, 429), the user is asked for credentials, once. An
///    expired token is renewed;
///  - redirects: at most 10, never from https to http. Credentials are not sent to another origin,
///    and token requests are not redirected to one;
///  - retries: at most 4 attempts after a broken connection, "too many requests" or a server
///    failure. The wait is the server's Retry-After, or increases with each attempt.
/// A broken download is resumed if the server supports ranges. Otherwise the bytes already received
/// are skipped. The digest shows whether the two parts belong together.
///
/// Another node (is_peer) gets one request without login, redirects and retries: any response but
/// the bytes is the error not_found or refused, a broken connection is unavailable.
class Fetch final : public BlobStream, private HttpHandler {
 public:
  Fetch(RegistrySession& session, FetchRequest request, FetchSink& sink);
  ~Fetch() override;
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  void start() override;
  /// Starts the next attempt when it is due.
  void advance() override;
  void resume() override { session_.http.resume(*this); }

  [[nodiscard]] bool finished() const override { return state_ == State::finished; }
  Result<void> outcome() override;
  [[nodiscard]] CameFrom comes_from() const override {
    return endpoint().is_mirror ? CameFrom::mirror : CameFrom::registry;
  }
  [[nodiscard]] const char* whose_fault() const override {
    return "the registry or a proxy changed it";
  }
  /// Returns the response head. Call once finished.
  Result<HttpHead> result();
  /// Returns the mirror that answered, or null if the registry itself did.
  [[nodiscard]] RegistryEndpoint* mirror() { return endpoint().is_mirror ? &endpoint() : nullptr; }
  /// Returns whether the fetch failed because the registry does not know the repository.
  [[nodiscard]] bool is_repository_unknown() const { return repository_unknown_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { idle, requesting, asking_token, waiting, finished };

  Take body(const HttpHead& head, std::span<const std::byte> bytes) override;
  void ended(const HttpHead& head, HttpEnd end) override;
  Take wanted_body(const HttpHead& head, std::span<const std::byte> bytes);

  [[nodiscard]] bool sends() const { return !request_.method.empty(); }
  [[nodiscard]] bool is_manifest() const { return request_.path.starts_with("manifests/"); }
  RegistryEndpoint& endpoint() { return session_.endpoints[at_]; }
  [[nodiscard]] const RegistryEndpoint& endpoint() const { return session_.endpoints[at_]; }
  void choose_endpoint();
  void leave_mirror(Error error, bool is_broken);

  void request(const std::string& url);
  void begin() { request(request_.url.empty() ? endpoint().url() + request_.path : request_.url); }
  void follow(const HttpHead& head, const HttpEnd& end);

  // Login.
  void authenticate(const HttpHead& head);
  bool log_in_with_secret(bool anonymous_was_refused);
  bool may_help(const HttpHead& head) const;
  bool ask_user(bool must_work);
  void ask_token(const std::string& redirected = {});
  void follow_login_server(const HttpEnd& end);
  void token_refused(const HttpHead& head);
  void use_token();
  Error explain(const HttpHead& head) const;

  void complete(const HttpHead& head);
  void leave_peer(const HttpHead& head, const HttpEnd& end);
  void try_again(Error error, std::optional<std::chrono::seconds> asked_wait, int cost = 1,
                 bool is_answer = false);
  void fail(Error error, bool is_answer = false);
  [[nodiscard]] std::string detour() const;
  Error about(Error error) const;

  RegistrySession& session_;
  FetchRequest request_;
  FetchSink& sink_;
  State state_ = State::idle;
  std::size_t at_ = 0;          // the current endpoint
  std::string url_;             // of the current request
  std::string token_url_;       // of the current token request
  std::string small_body_;      // of unexpected responses
  std::uint64_t received_ = 0;  // bytes passed to the sink
  std::uint64_t skip_ = 0;      // bytes of this response that the sink already has
  bool body_begun_ = false;
  bool ranges_work_ = true;
  std::optional<Error> stopped_;  // reason for aborting the response
  bool give_up_ = false;          // after aborting: another attempt is useless
  int redirects_ = 0;
  int token_redirects_ = 0;
  int tries_ = 0;
  int logins_ = 0;
  std::uint64_t tries_counted_from_ = 0;
  unsigned used_generation_ = 0;
  bool repository_unknown_ = false;  // by the last response
  bool used_secret_ = false;         // the last request carried the user's credentials
  bool asking_with_secret_ = false;
  Clock::time_point due_;
  std::optional<Result<HttpHead>> result_;
};

// --- fetch errors ---

/// Returns the error for a registry's refusal: whether tag, repository or blob is missing, whether
/// a login would help. `body` may contain the registry's own reason (distribution spec, "error
/// codes").
/// `is_manifest`: whether the refused request was for a manifest.
Error explain_status(const RegistrySession& session, bool is_manifest, const HttpHead& head,
                     std::string_view body);

/// Returns `of user "alice" from "/home/alice/.docker/config.json"`, for messages.
std::string described(const RegistrySecret& secret);

// --- login check ---

/// Result of a login check.
enum class LoginCheck {
  accepted,    ///< the registry accepts the credentials
  not_needed,  ///< it does not require a login, so they could not be checked
};

/// Checks credentials with a registry (HOST[:PORT]) as a pull would; a refusal is an error.
Result<LoginCheck> check_login(HttpClient& http, Log& log, const std::string& registry,
                               const Config& config, const RegistrySecret& secret);

}  // namespace spc
