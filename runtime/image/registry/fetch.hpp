#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "image/registry/blob_stream.hpp"
#include "image/registry/http.hpp"
#include "image/registry/registry_session.hpp"

namespace spc {

/// Receives the requested bytes, in order and each once.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  virtual HttpHandler::Take take(std::span<const std::byte> bytes) = 0;
};

struct FetchRequest {
  std::string path;  ///< below /v2/REPOSITORY/
  std::string what;  ///< in messages: `manifest "registry:5000/x:1"`
  bool head = false;
  std::string accept;
  std::uint64_t max_size = 0;               ///< a longer body is an error
  std::optional<std::uint64_t> exact_size;  ///< any other size is an error, if known
  bool not_from_mirrors = false;            ///< only the registry itself may answer
  std::string method;  ///< other than GET and HEAD: `upload` is sent so, and any success will do
  HttpUpload upload;
  std::string url;  ///< in place of `path`, to go on where the registry said
  bool once =
      false;  ///< a connection that breaks and a registry that fails are unavailable at once
  std::uint64_t begin_at = 0;  ///< so many bytes of it are there already
};

/// Fetches one object from a registry or its mirrors and handles
///  - a mirror that lacks it or fails: the next server is tried, and may resume a partial download;
///  - a login at the registry: first without credentials or with an anonymous token; if that is
///  refused (401, 403, 404
///    of a manifest, 429), the user is asked for credentials, once. An expired token is renewed;
///  - at most 5 redirects, never from https to http; credentials are not sent to another origin;
///  - at most 4 attempts after a broken connection, "too many requests" or a server failure,
///  waiting as long as
///    the server asks, or increasingly longer.
/// With another node none of this is done: it is asked once, and any answer but the bytes is an
/// error, not_found or refused; a connection that breaks is unavailable. A broken download is
/// resumed if the server supports it; otherwise the bytes already received are skipped. (The digest
/// tells whether the two parts belong together.)
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
  /// The response head, once finished.
  Result<HttpHead> result();
  /// The mirror that answered; null: the registry itself.
  [[nodiscard]] RegistryEndpoint* mirror() { return endpoint().is_mirror ? &endpoint() : nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { idle, requesting, asking_token, waiting, finished };

  Take body(const HttpHead& head, std::span<const std::byte> bytes) override;
  void ended(const HttpHead& head, HttpEnd end) override;
  Take wanted_body(const HttpHead& head, std::span<const std::byte> bytes);

  [[nodiscard]] bool sends() const { return !request_.method.empty(); }
  RegistryEndpoint& endpoint() { return session_.endpoints[at_]; }
  [[nodiscard]] const RegistryEndpoint& endpoint() const { return session_.endpoints[at_]; }
  void choose_endpoint();
  void leave_mirror(Error error, bool is_broken);

  void request(const std::string& url);
  void begin() { request(request_.url.empty() ? endpoint().url() + request_.path : request_.url); }
  void follow(const HttpHead& head, const HttpEnd& end);

  // fetch_login.cpp
  void authenticate(const HttpHead& head);
  bool log_in_with_secret(bool anonymous_was_refused);
  bool may_help(const HttpHead& head) const;
  bool ask_user(bool must_work);
  void ask_token();
  void token_refused(const HttpHead& head);
  void use_token();
  Error explain(const HttpHead& head) const;

  void complete(const HttpHead& head);
  void leave_peer(const HttpHead& head, const HttpEnd& end);
  void try_again(Error error, std::optional<std::chrono::seconds> asked_wait, int cost = 1);
  void fail(Error error);
  Error about(Error error) const;

  RegistrySession& session_;
  FetchRequest request_;
  FetchSink& sink_;
  State state_ = State::idle;
  std::size_t at_ = 0;          // the current endpoint
  std::string url_;             // of the current request
  std::string small_body_;      // of unexpected responses
  std::uint64_t received_ = 0;  // bytes passed to the sink
  std::uint64_t skip_ = 0;      // bytes of this response that the sink already has
  bool body_begun_ = false;
  bool ranges_work_ = true;
  std::optional<Error> stopped_;  // why we aborted the response
  bool give_up_ = false;          // and another attempt is useless
  int redirects_ = 0;
  int tries_ = 0;
  int logins_ = 0;
  std::uint64_t tries_counted_from_ = 0;
  unsigned used_generation_ = 0;
  bool used_secret_ = false;  // for the last response
  bool asking_with_secret_ = false;
  Clock::time_point due_;
  std::optional<Result<HttpHead>> result_;
};

}  // namespace spc
