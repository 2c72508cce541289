#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/blob_stream.hpp"
#include "image/http.hpp"

namespace spc {

/// To whom the registry gives what was got last.
enum class Access {
  anonymous,             ///< to everybody
  refused_to_anonymous,  ///< to these credentials: without any it refused
  not_known,             ///< to these credentials; it was not asked without
};

/// What the requests to one repository share.
struct RegistrySession {
  HttpClient& http;
  Log& log;              ///< told when something is tried again
  std::string registry;  ///< HOST[:PORT] as the user knows it
  std::string base_url;  ///< scheme and host that answer for it
  std::string repository;
  std::string ca;
  bool on_loopback = false;       ///< the registry is a service of this node: so may be what it redirects to
  std::string token;              ///< anonymous, of the registry's token server
  unsigned token_generation = 0;  ///< counts them, so that many fetches renew it once
  Access access = Access::anonymous;
};

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
};

/// Gets one thing from a registry and sees to what may come in between: an anonymous token (again when it expires),
/// at most 5 redirects (never from https to http; the token goes to no other origin), at most 4 tries after a broken
/// connection, "too many requests" or a server's failure, waiting in between as long as the server asks. A broken
/// download goes on where it broke if the server can; if not, what has been taken already is skipped. (Whether the two
/// parts belong together is for the digest to tell.)
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
  [[nodiscard]] const char* whose_fault() const override { return "the registry or something on the way changed it"; }
  /// The response's head, once finished.
  Result<HttpHead> result();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { idle, requesting, asking_token, waiting, finished };

  Take body(const HttpHead& head, std::span<const std::byte> bytes) override;
  void ended(const HttpHead& head, HttpEnd end) override;
  Take wanted_body(const HttpHead& head, std::span<const std::byte> bytes);

  void request(const std::string& url);
  void follow(const HttpHead& head, const HttpEnd& end);
  void authenticate(const HttpHead& head);
  void use_token();
  void complete(const HttpHead& head);
  void try_again(Error error, std::optional<std::chrono::seconds> asked_wait, int cost = 1);
  void fail(Error error);
  Error about(Error error) const;

  RegistrySession& session_;
  FetchRequest request_;
  FetchSink& sink_;
  State state_ = State::idle;
  std::string url_;             // of the request underway
  std::string small_body_;      // of answers that are not what was wanted
  std::uint64_t received_ = 0;  // bytes the sink has
  std::uint64_t skip_ = 0;      // of this response, which the sink has already
  bool body_begun_ = false;
  bool ranges_work_ = true;
  std::optional<Error> stopped_;  // why we ended the response ourselves
  int redirects_ = 0;
  int tries_ = 0;
  int logins_ = 0;
  std::uint64_t tries_counted_from_ = 0;
  unsigned used_generation_ = 0;
  Clock::time_point due_;
  std::optional<Result<HttpHead>> result_;
};

}  // namespace spc
