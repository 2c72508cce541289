#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// One HTTP request. Redirects are not followed and nothing is tried again: Fetch decides about both.
struct HttpRequest {
  std::string url;
  bool head = false;
  std::string accept;
  std::string authorization;        ///< the header's value, sent to this URL only; empty: none
  std::optional<std::string> form;  ///< POST this, application/x-www-form-urlencoded
  std::uint64_t range_from = 0;     ///< > 0: ask for the bytes from here to the end
  std::string ca;                   ///< file of certificates trusted besides the system's
  bool allow_loopback = true;       ///< a redirect must not lead to this node's own services
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
    complete,  ///< the whole response has arrived
    broken,    ///< the connection failed underway: trying again may help
    stalled,   ///< nothing came for long: the same, but it has cost time already
    failed,    ///< trying again is useless
  };
  Kind kind = Kind::complete;
  std::optional<Error> error;  ///< set unless complete
  std::string redirect;        ///< absolute URL of the Location header
  bool from_loopback = false;  ///< this node itself answered, and not through a proxy
};

/// Receives one response as it arrives.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  enum class Take {
    taken,
    later,  ///< none of it was taken: HttpClient::resume() brings it again
    stop,   ///< end the request (as broken)
  };
  virtual Take body(const HttpHead& head, std::span<const std::byte> bytes) = 0;
  /// Comes exactly once for each start() that is not cancelled. It may start the next request.
  virtual void ended(const HttpHead& head, HttpEnd end) = 0;
};

/// Proxies as URLs, for https and for http addresses; empty: none. `except`: hosts, domains and networks that are spoken to
/// without, separated by commas.
struct HttpProxies {
  std::string https;
  std::string http;
  std::string except;

  /// What https_proxy, http_proxy, all_proxy and no_proxy say, in lower case or else in upper case.
  static HttpProxies of_environment();
};

struct HttpSettings {
  std::chrono::seconds connect{15};
  std::chrono::seconds stall{30};  ///< slower than 1 KiB/s for this long
  HttpProxies proxies;             ///< the environment's variables count only where they were put in here
};

/// Runs any number of HTTP requests in the calling thread. Connections are kept and used again.
class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> create(HttpSettings settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One request at a time for each handler, which must live until it has ended or is cancelled.
  Result<void> start(const HttpRequest& request, HttpHandler& handler);
  void cancel(HttpHandler& handler);
  /// After Take::later: the handler can take bytes again.
  void resume(HttpHandler& handler);

  /// Waits until something happens on a connection or on one of `others`, at most `timeout`, and handles it.
  Result<void> wait(std::chrono::milliseconds timeout, std::span<pollfd> others = {});

 private:
  struct Transfer;
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace spc
