#pragma once

#include <curl/curl.h>
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
#include "protocol/bytes_from.hpp"

namespace spc {

// --- blob stream ---

/// A blob on its way from a registry or a file into a FetchSink. The owner polls its descriptors
/// and the HttpClient, for at most about 100 ms, and calls advance() each time.
class BlobStream {
 public:
  virtual ~BlobStream() = default;

  virtual void start() = 0;
  virtual void watch(std::vector<pollfd>& /*descriptors*/) const {}
  virtual void advance() = 0;  ///< may be called after the end
  /// Continues after the sink returned Take::later.
  virtual void resume() = 0;

  [[nodiscard]] virtual bool finished() const = 0;
  /// Returns whether the stream waits for another node that is still fetching the blob.
  [[nodiscard]] virtual bool waits_for_node() const { return false; }
  /// Returns the current source of the bytes.
  [[nodiscard]] virtual CameFrom comes_from() const { return CameFrom::registry; }
  /// Returns an error if the blob is incomplete. Call once finished.
  virtual Result<void> outcome() = 0;
  /// Returns a hint for the user if the bytes do not match the blob's digest.
  [[nodiscard]] virtual const char* whose_fault() const = 0;
  /// Called once, when the stream has finished and all its bytes were compared with the digest.
  virtual void proven(bool /*is_right*/) {}
  /// Called if the converted result is wrong. Returns true if some bytes came from other nodes of
  /// the step: the stream does not request this blob from them again, so another attempt may
  /// succeed.
  virtual bool blames_nodes() { return false; }
};

// --- HTTP client ---

/// Request body: `size` bytes of a file at `offset`.
struct HttpUpload {
  int file = -1;  ///< borrowed; ignored if `size` is 0
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::string type;   ///< Content-Type; empty: none
  std::string range;  ///< Content-Range; empty: none
  /// called with the number of bytes sent so far; may be empty
  std::function<void(std::uint64_t)> meter;
};

/// Files of a connection over TLS, in PEM.
struct TlsFiles {
  std::string ca;                ///< CA certificates trusted in addition to the system's
  std::string certificate, key;  ///< of the client; empty: none
};

/// One HTTP request. Fetch handles redirects and retries.
struct HttpRequest {
  std::string url;
  bool head = false;
  std::string accept;
  std::string authorization;  ///< header value, sent to this URL only; empty: none
  std::string method;         ///< with an upload: POST, PATCH or PUT
  std::optional<HttpUpload> upload;
  std::optional<std::string> form;  ///< POST this, application/x-www-form-urlencoded
  std::uint64_t range_from = 0;     ///< > 0: request the bytes from here to the end
  std::uint64_t range_end = 0;      ///< > 0: request the bytes up to this one, without it
  TlsFiles tls;
  bool is_peer = false;  ///< another node: no proxy, a short connect time-out, no stall time-out
  bool allow_loopback = true;       ///< false: a redirect must not lead to this node's own services
  const char* server = "registry";  ///< kind of server, for hints
};

/// Status and headers of a response; header names are in lower case.
struct HttpHead {
  long status = 0;
  std::vector<std::pair<std::string, std::string>> headers;

  /// Returns the first header of this name, or an empty string.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

/// End of a request, with the redirect that the server requested.
struct HttpEnd {
  enum class Kind {
    complete,  ///< the whole response was received
    broken,    ///< the connection broke: a retry may help
    stalled,   ///< no data for too long: a retry may help, but time has been lost
    failed,    ///< a retry is useless
  };
  Kind kind = Kind::complete;
  std::optional<Error> error;  ///< set unless complete
  std::string redirect;        ///< absolute URL of the Location header
  bool from_loopback = false;  ///< this node itself answered, without a proxy
};

/// Receiver of one response as it arrives.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  enum class Take {
    taken,
    later,  ///< nothing was consumed: HttpClient::resume() delivers it again
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

  /// Reads https_proxy, http_proxy, all_proxy and no_proxy, in lower or else upper case.
  static HttpProxies of_environment();
};

/// Time-outs and proxies of an HttpClient.
struct HttpSettings {
  std::chrono::seconds connect{15};
  std::chrono::seconds stall{30};  ///< below 1 KiB/s for this long
  HttpProxies proxies;             ///< environment variables are used only if stored here
};

/// Runner of any number of HTTP requests in the calling thread. Connections are reused.
class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> create(HttpSettings settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Starts a request. A handler has one request at a time and must outlive it or its cancellation.
  Result<void> start(const HttpRequest& request, HttpHandler& handler);
  void cancel(HttpHandler& handler);
  /// Delivers data again to a handler that returned Take::later.
  void resume(HttpHandler& handler);

  /// Waits at most `timeout` for events on a connection or one of `others`, and handles them.
  Result<void> wait(std::chrono::milliseconds timeout, std::span<pollfd> others = {});

 private:
  struct Transfer;
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// --- HTTP errors ---

/// Returns how a request with libcurl's result `code` ended, that is, whether it may be retried.
HttpEnd::Kind kind_of_end(CURL* handle, CURLcode code);

/// Explains libcurl's `code` to a user: unknown host, refused connection, kind of TLS failure.
/// `detail` is libcurl's own text, used if there is no better one. `server` is its kind, for hints.
Error explain_curl(CURL* handle, CURLcode code, const char* detail, bool proxied,
                   const char* server = "registry");

}  // namespace spc
