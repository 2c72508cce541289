#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// What a request sends: `size` bytes of a file at `offset`.
struct HttpUpload {
  int file = -1;  ///< borrowed; any if there is nothing to send
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::string type;   ///< Content-Type; empty: none
  std::string range;  ///< Content-Range; empty: none
  std::function<void(std::uint64_t)>
      meter;  ///< told how many bytes the connection has taken; may be empty
};

/// One HTTP request. Redirects and retries are up to Fetch.
struct HttpRequest {
  std::string url;
  bool head = false;
  std::string accept;
  std::string authorization;  ///< header value, sent to this URL only; empty: none
  std::string method;         ///< with an upload: POST, PATCH or PUT
  std::optional<HttpUpload> upload;
  std::optional<std::string> form;  ///< POST this, application/x-www-form-urlencoded
  std::uint64_t range_from = 0;     ///< > 0: request the bytes from here to the end
  std::string ca;                   ///< CA certificates trusted in addition to the system's
  bool is_peer = false;  ///< another node: near, asked without proxy, and may send nothing for long
  bool allow_loopback = true;  ///< false: a redirect must not lead to this node's own services
};

/// Status and headers of a response; header names are in lower case.
struct HttpHead {
  long status = 0;
  std::vector<std::pair<std::string, std::string>> headers;

  /// The first header of this name, or empty.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

/// How a request ended.
struct HttpEnd {
  enum class Kind {
    complete,  ///< the whole response was received
    broken,    ///< the connection broke: a retry may help
    stalled,   ///< no data for too long: the same, but time has been lost
    failed,    ///< a retry is useless
  };
  Kind kind = Kind::complete;
  std::optional<Error> error;  ///< set unless complete
  std::string redirect;        ///< absolute URL of the Location header
  bool from_loopback = false;  ///< answered by this node itself, not through a proxy
};

/// Receives one response as it arrives.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  enum class Take {
    taken,
    later,  ///< nothing was taken: HttpClient::resume() delivers it again
    stop,   ///< abort the request (as broken)
  };
  virtual Take body(const HttpHead& head, std::span<const std::byte> bytes) = 0;
  /// Called exactly once for each start() that is not cancelled. May start the next request.
  virtual void ended(const HttpHead& head, HttpEnd end) = 0;
};

/// Proxies as URLs, for https and for http; empty: none. `except`: hosts, domains and networks to
/// contact directly, separated by commas.
struct HttpProxies {
  std::string https;
  std::string http;
  std::string except;

  /// From https_proxy, http_proxy, all_proxy and no_proxy, in lower or else upper case.
  static HttpProxies of_environment();
};

struct HttpSettings {
  std::chrono::seconds connect{15};
  std::chrono::seconds stall{30};  ///< below 1 KiB/s for this long
  HttpProxies proxies;             ///< environment variables are used only if stored here
};

/// Runs any number of HTTP requests in the calling thread. Connections are reused.
class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> create(HttpSettings settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One request at a time per handler, which must outlive the request or its cancellation.
  Result<void> start(const HttpRequest& request, HttpHandler& handler);
  void cancel(HttpHandler& handler);
  /// After Take::later: the handler can receive again.
  void resume(HttpHandler& handler);

  /// Waits at most `timeout` for events on a connection or one of `others`, and handles them.
  Result<void> wait(std::chrono::milliseconds timeout, std::span<pollfd> others = {});

 private:
  struct Transfer;
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace spc
