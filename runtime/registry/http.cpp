#include "registry/http.hpp"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <openssl/x509_vfy.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <list>
#include <utility>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- HTTP errors ---

namespace {

/// Returns whether the time-out occurred while connecting.
bool never_connected(CURL* handle) {
  curl_off_t ready = 0;  // CONNECT_TIME stays 0 on a reused connection
  curl_easy_getinfo(handle, CURLINFO_PRETRANSFER_TIME_T, &ready);
  return ready == 0;
}

Error explain_certificate(CURL* handle, const char* detail, const char* server) {
  long verify = 0;
  curl_easy_getinfo(handle, CURLINFO_SSL_VERIFYRESULT, &verify);
  const auto untrusted = [](const char* why, const std::string& hint) {
    return std::move(
        Error(ErrorKind::refused, std::string("its TLS certificate ") + why).hint(hint));
  };
  const std::string trust =
      formatted("the site can trust it with ca = \"FILE\" for this {} in config.toml", server);
  const std::string check = formatted("check the {}'s name", server);
  switch (verify) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return untrusted("has expired", "if it has not, this node's clock is wrong");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return untrusted("is not valid yet", "this node's clock is probably wrong");
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN: return untrusted("is self-signed", trust);
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return untrusted("is signed by an unknown authority", trust);
    case X509_V_ERR_HOSTNAME_MISMATCH: return untrusted("belongs to another host", check);
    default: break;
  }
  if (std::strstr(detail, "subject name") != nullptr ||
      std::strstr(detail, "does not match") != nullptr) {
    return untrusted("belongs to another host", check);
  }
  return {ErrorKind::refused,
          std::string("its TLS certificate cannot be trusted: ") + printable(detail)};
}

}  // namespace

HttpEnd::Kind kind_of_end(CURL* handle, CURLcode code) {
  switch (code) {
    case CURLE_OK: return HttpEnd::Kind::complete;
    case CURLE_OPERATION_TIMEDOUT:
      return never_connected(handle) ? HttpEnd::Kind::failed : HttpEnd::Kind::stalled;
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_WRITE_ERROR:
    case CURLE_SEND_FAIL_REWIND:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return HttpEnd::Kind::broken;
    default: return HttpEnd::Kind::failed;
  }
}

Error explain_curl(CURL* handle, CURLcode code, const char* detail, bool proxied,
                   const char* server) {
  // libcurl's text may contain the proxy's address, and that the proxy's password.
  const std::string shown =
      printable(*detail != '\0' && !proxied ? detail : curl_easy_strerror(code));
  if (proxied) {
    long connect_status = 0;
    curl_easy_getinfo(handle, CURLINFO_HTTP_CONNECTCODE, &connect_status);
    if (connect_status >= 300) {
      return std::move(Error(ErrorKind::unavailable,
                             formatted("the proxy refuses to connect (status {})", connect_status)))
          .hint(connect_status == 407 ? "https_proxy=http://USER:PASSWORD@HOST:PORT"
                                      : "no_proxy=HOST avoids the proxy");
    }
    if (code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_CONNECT) {
      return std::move(Error(ErrorKind::unavailable, "the proxy cannot be reached"))
          .hint("check https_proxy, http_proxy and no_proxy");
    }
  }
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return std::move(Error(ErrorKind::unavailable, "no such host")
                           .hint(formatted("check the {}'s name", server)));
    case CURLE_COULDNT_CONNECT: {
      long err = 0;
      curl_easy_getinfo(handle, CURLINFO_OS_ERRNO, &err);
      if (err == ECONNREFUSED) {
        return std::move(Error(ErrorKind::unavailable, "connection refused")
                             .hint(formatted("check that the {} runs on this port", server)));
      }
      const char* reason = err != 0 ? strerrordesc_np(static_cast<int>(err)) : nullptr;
      return {ErrorKind::unavailable,
              reason != nullptr ? "cannot connect: " + std::string(reason) : "cannot connect"};
    }
    case CURLE_OPERATION_TIMEDOUT:
      if (never_connected(handle))
        return {ErrorKind::unavailable, "does not respond within 15 seconds"};
      return {ErrorKind::unavailable, "stopped sending"};
    case CURLE_PEER_FAILED_VERIFICATION: return explain_certificate(handle, detail, server);
    case CURLE_SSL_CERTPROBLEM:
      return std::move(Error(ErrorKind::refused, "TLS certificate of this client: " + shown)
                           .hint(formatted("set client_cert and client_key of this {} in "
                                           "config.toml, or put them into certs.d",
                                           server)));
    case CURLE_SSL_CACERT_BADFILE:
      return {ErrorKind::invalid, "the file of trusted certificates cannot be read: " + shown};
    case CURLE_SSL_CONNECT_ERROR:
      if (shown.find("wrong version number") != std::string::npos ||
          shown.find("packet length too long") != std::string::npos) {
        return std::move(Error(ErrorKind::refused, "does not speak TLS")
                             .hint(formatted("the site can allow plain HTTP with insecure = true "
                                             "for this {} in config.toml",
                                             server)));
      }
      return {ErrorKind::unavailable, "TLS: " + shown};
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
      return {ErrorKind::unavailable, "closed the connection during the transfer"};
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return {ErrorKind::unavailable, "is not an HTTP server: " + shown};
#if LIBCURL_VERSION_NUM >= 0x080600
    case CURLE_TOO_LARGE:
#endif
    case CURLE_OUT_OF_MEMORY:
      // libcurl before 8.6 reports this for a header line of more than 100 KiB. Its other
      // allocations are small.
      return std::move(Error(ErrorKind::unavailable, "the response has a header that is too long")
                           .hint("check what answers there: a proxy or a login page, perhaps"));
    default: return {ErrorKind::unavailable, shown};
  }
}

// --- HTTP client ---

namespace {

constexpr std::size_t kMaxHeaderBytes = 64 * 1024;
constexpr long kReceiveBuffer = 512 * 1024;
constexpr long kPeerConnectMs = 1000;  // nodes are near, but both ends may be busy

/// Returns whether the system also stores trusted certificates one by one under their hashes.
/// Looking one up there is faster than reading the whole bundle, which costs OpenSSL 3 about 20 ms.
/// The bundle is read only if a certificate is not found.
bool has_hashed_certificates() {
  const char* path = curl_version_info(CURLVERSION_NOW)->capath;
  for (DirectoryReader files(path != nullptr ? path : ""); files.next();) {
    const auto name = files.name();
    if (name.size() == 10 && name.ends_with(".0") &&
        name.find_first_not_of("0123456789abcdef") == 8)
      return true;
  }
  return false;
}

enum class Where { elsewhere, loopback, link_local };

Where where_is(const sockaddr* address) {
  std::uint32_t v4 = 0;
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof in);
    v4 = ntohl(in.sin_addr.s_addr);
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, address, sizeof in6);
    if (IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr)) return Where::loopback;
    if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr)) return Where::link_local;
    if (!IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) return Where::elsewhere;
    std::memcpy(&v4, in6.sin6_addr.s6_addr + 12, sizeof v4);
    v4 = ntohl(v4);
  }
  if (v4 >> 24 == 127 || v4 == 0) return Where::loopback;
  if (v4 >> 16 == 0xa9fe) return Where::link_local;
  return Where::elsewhere;
}

constexpr char kOnlyThisNode[] = "resolves to a local address of this node";
bool is_forbidden(Where where, bool allow_loopback) {
  return where == Where::link_local || (where == Where::loopback && !allow_loopback);
}

std::string host_of(const std::string& url) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), &curl_url_cleanup);
  char* host = nullptr;
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK ||
      curl_url_get(parsed.get(), CURLUPART_HOST, &host, 0) != CURLUE_OK) {
    return {};
  }
  std::string out = host;
  curl_free(host);
  if (out.starts_with('[') && out.ends_with(']')) out = out.substr(1, out.size() - 2);
  return out;
}

/// Classifies the address in a URL. A host name is Where::elsewhere.
Where where_leads(const std::string& url) {
  const std::string host = host_of(url);
  sockaddr_in v4{.sin_family = AF_INET};
  sockaddr_in6 v6{.sin6_family = AF_INET6};
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1)
    return where_is(reinterpret_cast<const sockaddr*>(&v4));
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1)
    return where_is(reinterpret_cast<const sockaddr*>(&v6));
  return Where::elsewhere;
}

/// Returns whether `except` names the host: itself, a domain above it (with or without a leading
/// dot), or `*`. libcurl's own list is not used, because this code must know whether a proxy is
/// used.
bool is_excepted(const std::string& url, std::string_view except) {
  const std::string host = host_of(url);
  while (!except.empty()) {
    std::string_view name = trimmed(except.substr(0, except.find(',')));
    except.remove_prefix(
        std::min(except.find(',') == std::string_view::npos ? except.size() : except.find(',') + 1,
                 except.size()));
    if (name == "*") return true;
    while (name.starts_with('.')) name.remove_prefix(1);
    if (name.empty() || name.size() > host.size()) continue;
    const bool same_end =
        ::strncasecmp(host.data() + host.size() - name.size(), name.data(), name.size()) == 0;
    if (same_end && (name.size() == host.size() || host[host.size() - name.size() - 1] == '.'))
      return true;
  }
  return false;
}

}  // namespace

HttpProxies HttpProxies::of_environment() {
  const auto variable = [](const char* lower, const char* upper) -> std::string {
    for (const char* name : {lower, upper}) {
      if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
    }
    return {};
  };
  HttpProxies proxies{.https = variable("https_proxy", "HTTPS_PROXY"),
                      .http = variable("http_proxy", "HTTP_PROXY"),
                      .except = variable("no_proxy", "NO_PROXY")};
  const std::string all = variable("all_proxy", "ALL_PROXY");
  if (proxies.https.empty()) proxies.https = all;
  if (proxies.http.empty()) proxies.http = all;
  return proxies;
}

std::string_view HttpHead::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

struct HttpClient::Transfer {
  CURL* handle = nullptr;
  curl_slist* headers = nullptr;
  HttpHandler* handler = nullptr;
  HttpHead head;
  std::size_t header_bytes = 0;
  bool allow_loopback = true;
  const char* server = "registry";
  bool proxied = false;
  bool paused = false;
  bool stopped = false;         // by its handler
  bool without_bundle = false;  // trusted certificates are looked up by their hashes only
  std::string form;
  HttpUpload upload;
  std::uint64_t sent = 0;
  std::string refused;  // reason for which this client aborts the transfer
  char error[CURL_ERROR_SIZE] = {};

  ~Transfer() {
    for (curl_slist* header = headers; header != nullptr; header = header->next) {
      ::explicit_bzero(header->data, std::strlen(header->data));
    }
    ::explicit_bzero(form.data(), form.size());
    curl_slist_free_all(headers);
  }

  static std::size_t on_header(char* data, std::size_t, std::size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    transfer.header_bytes += size;
    if (transfer.header_bytes > kMaxHeaderBytes) {
      transfer.refused = "the response has more than 64 KiB of headers";
      return 0;
    }
    const std::string_view line = trimmed({data, size});
    if (line.starts_with("HTTP/")) {  // a new status line, as after 100 Continue, starts a new head
      transfer.head.headers.clear();
      return size;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return size;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    transfer.head.headers.emplace_back(std::move(name), trimmed(line.substr(colon + 1)));
    return size;
  }

  static std::size_t on_body(char* data, std::size_t, std::size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &transfer.head.status);
    switch (transfer.handler->body(transfer.head, std::as_bytes(std::span(data, size)))) {
      case HttpHandler::Take::taken: return size;
      case HttpHandler::Take::later: transfer.paused = true; return CURL_WRITEFUNC_PAUSE;
      case HttpHandler::Take::stop: transfer.stopped = true; break;
    }
    return 0;
  }

  static std::size_t on_upload(char* into, std::size_t, std::size_t room, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const HttpUpload& upload = transfer.upload;
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(room, upload.size - transfer.sent));
    if (wanted == 0) return 0;
    const ssize_t got =
        ::pread(upload.file, into, wanted, static_cast<off_t>(upload.offset + transfer.sent));
    if (got <= 0) {
      transfer.refused = "what is sent cannot be read any more";
      return CURL_READFUNC_ABORT;
    }
    transfer.sent += static_cast<std::uint64_t>(got);
    if (upload.meter) upload.meter(transfer.sent);
    return static_cast<std::size_t>(got);
  }

  /// Rewinds the upload: if a kept connection has ended meanwhile, libcurl starts again on another
  /// one. Fails once bytes have been sent, because a registry that stored them would have them
  /// twice.
  static int on_rewind(void* self, curl_off_t offset, int whence) {
    return whence == SEEK_SET && offset == 0 && static_cast<Transfer*>(self)->sent == 0
               ? CURL_SEEKFUNC_OK
               : CURL_SEEKFUNC_FAIL;
  }

  /// Sets up an upload. Returns false if out of memory.
  bool send(const HttpRequest& request) {
    upload = *request.upload;
    bool ok = curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str()) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE,
                               static_cast<curl_off_t>(upload.size)) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_READFUNCTION, &on_upload) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_READDATA, static_cast<void*>(this)) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_SEEKFUNCTION, &on_rewind) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_SEEKDATA, static_cast<void*>(this)) == CURLE_OK &&
              curl_easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, kReceiveBuffer) == CURLE_OK;
    ok = ok && add("Expect:");  // no 100 Continue: an earlier request has settled the login
    if (!upload.type.empty()) ok = ok && add("Content-Type: " + upload.type);
    if (!upload.range.empty()) ok = ok && add("Content-Range: " + upload.range);
    return ok;
  }

  bool add(const std::string& line) {
    curl_slist* longer = curl_slist_append(headers, line.c_str());
    if (longer != nullptr) headers = longer;
    return longer != nullptr;
  }

  static curl_socket_t on_socket(void* self, curlsocktype, curl_sockaddr* address) {
    auto& transfer = *static_cast<Transfer*>(self);
    // The site's proxy may run on each node, and the address that it connects to is not visible
    // here.
    if (!transfer.proxied && is_forbidden(where_is(&address->addr), transfer.allow_loopback)) {
      transfer.refused = kOnlyThisNode;
      return CURL_SOCKET_BAD;
    }
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  }
};

struct HttpClient::Impl {
  CURLM* multi = nullptr;
  HttpSettings settings;
  std::optional<bool> hashed_certificates;  // determined by the first https request
  std::list<std::unique_ptr<Transfer>> transfers;
  bool resumed = false;  // since the last wait

  ~Impl() {
    for (auto& transfer : transfers) {
      curl_multi_remove_handle(multi, transfer->handle);
      curl_easy_cleanup(transfer->handle);
    }
    if (multi != nullptr) curl_multi_cleanup(multi);
  }

  std::unique_ptr<Transfer> take(CURL* handle) {
    const auto found = std::find_if(transfers.begin(), transfers.end(),
                                    [&](const auto& t) { return t->handle == handle; });
    if (found == transfers.end()) return nullptr;
    auto transfer = std::move(*found);
    transfers.erase(found);
    curl_multi_remove_handle(multi, handle);
    return transfer;
  }

  Transfer* of(const HttpHandler& handler) {
    for (auto& transfer : transfers) {
      if (transfer->handler == &handler) return transfer.get();
    }
    return nullptr;
  }

  /// Restarts the request with the bundle of trusted certificates added. No part of the request has
  /// been sent yet.
  bool try_with_bundle(CURL* handle) {
    const auto found = std::find_if(transfers.begin(), transfers.end(),
                                    [&](const auto& t) { return t->handle == handle; });
    const char* bundle = curl_version_info(CURLVERSION_NOW)->cainfo;
    if (found == transfers.end() || !(*found)->without_bundle || bundle == nullptr) return false;
    (*found)->without_bundle = false;
    hashed_certificates = false;
    return curl_easy_setopt(handle, CURLOPT_CAINFO, bundle) == CURLE_OK &&
           curl_multi_remove_handle(multi, handle) == CURLM_OK &&
           curl_multi_add_handle(multi, handle) == CURLM_OK;
  }

  /// Notifies the handlers of all requests that have ended.
  void deliver_ends() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      if (code == CURLE_PEER_FAILED_VERIFICATION && try_with_bundle(message->easy_handle)) continue;
      // `message` is invalid once the handle is removed
      auto transfer = take(message->easy_handle);
      if (!transfer) continue;
      HttpEnd end = end_of(*transfer, code);
      HttpHandler& handler = *transfer->handler;
      curl_easy_cleanup(transfer->handle);
      handler.ended(transfer->head, std::move(end));
    }
  }

  static HttpEnd end_of(Transfer& transfer, CURLcode code) {
    HttpEnd end;
    curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &transfer.head.status);
    if (char* url = nullptr;
        curl_easy_getinfo(transfer.handle, CURLINFO_REDIRECT_URL, &url) == CURLE_OK &&
        url != nullptr) {
      end.redirect = url;
    }
    if (char* ip = nullptr;
        !transfer.proxied &&
        curl_easy_getinfo(transfer.handle, CURLINFO_PRIMARY_IP, &ip) == CURLE_OK && ip != nullptr) {
      end.from_loopback = std::strncmp(ip, "127.", 4) == 0 || std::strcmp(ip, "::1") == 0;
    }
    // A handler that stops a resumed transfer fails curl_easy_pause() and not always the transfer.
    if (code == CURLE_OK && transfer.stopped) code = CURLE_WRITE_ERROR;
    if (code == CURLE_OK) return end;
    if (!transfer.refused.empty()) {
      end.kind = HttpEnd::Kind::failed;
      end.error = Error(ErrorKind::refused, transfer.refused);
      return end;
    }
    // TLS 1.3 servers ask for a certificate behind the handshake. A retry does not help.
    if (std::strstr(transfer.error, "certificate required") != nullptr)
      code = CURLE_SSL_CERTPROBLEM;
    end.kind = kind_of_end(transfer.handle, code);
    end.error =
        explain_curl(transfer.handle, code, transfer.error, transfer.proxied, transfer.server);
    return end;
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::create(HttpSettings settings) {
  auto impl = std::make_unique<Impl>();
  impl->settings = std::move(settings);
  if (curl_global_init(CURL_GLOBAL_NOTHING) == CURLE_OK) impl->multi = curl_multi_init();
  if (impl->multi == nullptr)
    return Error(ErrorKind::no_space, "start the HTTP client: out of memory");
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

namespace {

std::string range_header(const HttpRequest& request) {
  const std::string last = request.range_end > 0 ? std::to_string(request.range_end - 1) : "";
  return formatted("Range: bytes={}-{}", request.range_from, last);
}

/// Sets the client's certificate. Returns false if there is no memory. curl reads the files when it
/// connects.
bool identify(CURL* handle, const TlsFiles& files) {
  const auto set = [&](CURLoption option, const std::string& path) {
    return path.empty() || curl_easy_setopt(handle, option, path.c_str()) == CURLE_OK;
  };
  return set(CURLOPT_SSLCERT, files.certificate) && set(CURLOPT_SSLKEY, files.key);
}

}  // namespace

Result<void> HttpClient::start(const HttpRequest& request, HttpHandler& handler) {
  const bool is_https = request.url.starts_with("https:");
  const HttpProxies& proxies = impl_->settings.proxies;
  const std::string& proxy = is_https ? proxies.https : proxies.http;
  auto transfer = std::make_unique<Transfer>();
  transfer->proxied =
      !proxy.empty() && !request.is_peer && !is_excepted(request.url, proxies.except);
  if (transfer->proxied && is_forbidden(where_leads(request.url), request.allow_loopback)) {
    return Error(ErrorKind::refused, kOnlyThisNode);
  }
  transfer->handler = &handler;
  transfer->allow_loopback = request.allow_loopback;
  transfer->server = request.server;
  // Each request has its own handle. Connections belong to the multi handle. A reused handle keeps
  // too much state: the last header's address, which a folded first line of the next response
  // follows (curl#11103, up to 8.1), and a buffer after a failure.
  CURL* const handle = transfer->handle = curl_easy_init();
  if (handle == nullptr) return Error(ErrorKind::no_space, "start a request: out of memory");
  Transfer* self = impl_->transfers.emplace_back(std::move(transfer)).get();

  bool ok = identify(handle, request.tls);
  std::string why = "out of memory";
  const auto set = [&](CURLoption option, auto value) {
    const CURLcode code = ok ? curl_easy_setopt(handle, option, value) : CURLE_OK;
    if (code != CURLE_OK)
      ok = false,
      why = formatted("option {}: {}", static_cast<int>(option), curl_easy_strerror(code));
  };
  const auto add = [&](const std::string& line) { ok = self->add(line) && ok; };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  // One connection per layer is faster than one for all, and HTTP/2's windows would couple the
  // layers' back-pressure.
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "spank-container/" SPC_VERSION);
  set(CURLOPT_BUFFERSIZE, kReceiveBuffer);
  if (request.is_peer) {
    set(CURLOPT_CONNECTTIMEOUT_MS, kPeerConnectMs);
  } else {
    set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(impl_->settings.connect.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, 1024L);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(impl_->settings.stall.count()));
  }
  set(CURLOPT_ERRORBUFFER, self->error);
  set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(self));
  set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(self));
  set(CURLOPT_OPENSOCKETFUNCTION, &Transfer::on_socket);
  set(CURLOPT_OPENSOCKETDATA, static_cast<void*>(self));
  if (request.head) set(CURLOPT_NOBODY, 1L);
  if (!request.tls.ca.empty()) {
    set(CURLOPT_CAINFO, request.tls.ca.c_str());
  } else if (is_https) {
    if (!impl_->hashed_certificates) impl_->hashed_certificates = has_hashed_certificates();
    self->without_bundle = *impl_->hashed_certificates;
    if (self->without_bundle) set(CURLOPT_CAINFO, static_cast<const char*>(nullptr));
  }
  set(CURLOPT_PROXY, self->proxied ? proxy.c_str() : "");  // empty: ignore the environment as well
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (request.form) {
    self->form = *request.form;
    set(CURLOPT_POSTFIELDSIZE, static_cast<long>(self->form.size()));
    set(CURLOPT_POSTFIELDS, self->form.c_str());
  }
  if (request.upload) ok = ok && self->send(request);
  if (!request.accept.empty()) add("Accept: " + request.accept);
  if (!request.authorization.empty()) add("Authorization: " + request.authorization);
  if (request.range_from > 0) add(range_header(request));
  if (self->headers != nullptr) set(CURLOPT_HTTPHEADER, self->headers);
  const CURLMcode added = ok ? curl_multi_add_handle(impl_->multi, handle) : CURLM_OK;
  if (ok && added == CURLM_OK) return {};
  if (ok) why = curl_multi_strerror(added);
  curl_easy_cleanup(handle);
  impl_->transfers.pop_back();
  return Error(ErrorKind::internal, formatted("start a request to {}: libcurl refuses it: {}",
                                              in_quotes(request.url), why));
}

void HttpClient::cancel(HttpHandler& handler) {
  Transfer* transfer = impl_->of(handler);
  if (transfer == nullptr) return;
  const auto owned = impl_->take(transfer->handle);
  curl_easy_cleanup(owned->handle);
}

void HttpClient::resume(HttpHandler& handler) {
  Transfer* transfer = impl_->of(handler);
  if (transfer == nullptr || !transfer->paused) return;
  transfer->paused = false;
  impl_->resumed = true;
  curl_easy_pause(transfer->handle, CURLPAUSE_CONT);
}

Result<void> HttpClient::wait(std::chrono::milliseconds timeout, std::span<pollfd> others) {
  std::vector<curl_waitfd> watched(others.size());
  for (std::size_t i = 0; i < others.size(); ++i) {
    // CURL_WAIT_* bits differ from poll's: translate.
    watched[i].fd = others[i].fd;
    watched[i].events =
        static_cast<short>(((others[i].events & POLLIN) != 0 ? CURL_WAIT_POLLIN : 0) |
                           ((others[i].events & POLLOUT) != 0 ? CURL_WAIT_POLLOUT : 0));
  }
  // A resumed transfer may be complete already, and no descriptor would tell.
  if (std::exchange(impl_->resumed, false)) timeout = {};
  int running = 0;
  CURLMcode code =
      curl_multi_poll(impl_->multi, watched.data(), static_cast<unsigned>(watched.size()),
                      static_cast<int>(timeout.count()), nullptr);
  if (code == CURLM_OK) code = curl_multi_perform(impl_->multi, &running);
  impl_->deliver_ends();
  if (code != CURLM_OK)
    return Error(ErrorKind::internal, std::string("HTTP client: ") + curl_multi_strerror(code));
  return {};
}

}  // namespace spc
