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

/// Takes the bytes that are wanted, in order and each once.
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
  std::optional<std::uint64_t> exact_size;  ///< so is another size, where it is known
  bool not_from_mirrors = false;            ///< the registry itself has to say it
};

/// Gets one thing from a registry or its mirrors and sees to what may come in between:
///  - a mirror that does not have it or does not work: the next server is asked, which may go on in the middle;
///  - at the registry, a login: first without credentials, or with an anonymous token; when that is refused (401, 403, 404
///    of a manifest, 429) the user is asked for his credentials, once. A token that expires is renewed;
///  - at most 5 redirects, never from https to http; what was used to log in goes to no other origin;
///  - at most 4 tries after a broken connection, "too many requests" or a server's failure, waiting in between as long as
///    the server asks, or longer and longer.
/// A broken download goes on where it broke if the server can; if not, what has been taken already is skipped. (Whether the
/// two parts belong together is for the digest to tell.)
class Fetch final : public BlobStream, private HttpHandler {
 public:
  Fetch(RegistrySession& session, FetchRequest request, FetchSink& sink);
  ~Fetch() override;
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  void start() override;
  /// Begins the next try when its time has come.
  void advance() override;
  void resume() override { session_.http.resume(*this); }

  [[nodiscard]] bool finished() const override { return state_ == State::finished; }
  Result<void> outcome() override;
  [[nodiscard]] const char* whose_fault() const override { return "the registry or a proxy changed it"; }
  /// The response's head, once finished.
  Result<HttpHead> result();
  /// The mirror that answered; null: it was the registry itself.
  [[nodiscard]] RegistryEndpoint* mirror() { return endpoint().is_mirror ? &endpoint() : nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { idle, requesting, asking_token, waiting, finished };

  Take body(const HttpHead& head, std::span<const std::byte> bytes) override;
  void ended(const HttpHead& head, HttpEnd end) override;
  Take wanted_body(const HttpHead& head, std::span<const std::byte> bytes);

  RegistryEndpoint& endpoint() { return session_.endpoints[at_]; }
  [[nodiscard]] const RegistryEndpoint& endpoint() const { return session_.endpoints[at_]; }
  void choose_endpoint();
  void leave_mirror(Error error, bool is_broken);

  void request(const std::string& url);
  void begin() { request(endpoint().url() + request_.path); }
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
  void try_again(Error error, std::optional<std::chrono::seconds> asked_wait, int cost = 1);
  void fail(Error error);
  Error about(Error error) const;

  RegistrySession& session_;
  FetchRequest request_;
  FetchSink& sink_;
  State state_ = State::idle;
  std::size_t at_ = 0;          // the endpoint that is asked
  std::string url_;             // of the request underway
  std::string small_body_;      // of answers that are not what was wanted
  std::uint64_t received_ = 0;  // bytes the sink has
  std::uint64_t skip_ = 0;      // of this response, which the sink has already
  bool body_begun_ = false;
  bool ranges_work_ = true;
  std::optional<Error> stopped_;  // why we ended the response ourselves
  bool give_up_ = false;          // and that another try is useless
  int redirects_ = 0;
  int tries_ = 0;
  int logins_ = 0;
  std::uint64_t tries_counted_from_ = 0;
  unsigned used_generation_ = 0;
  bool used_secret_ = false;  // to get what came last
  bool asking_with_secret_ = false;
  Clock::time_point due_;
  std::optional<Result<HttpHead>> result_;
};

}  // namespace spc
