#include "image/registry/http.hpp"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>

#include "base/directory.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "image/registry/http_error.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxHeaderBytes = 64 * 1024;
constexpr long kReceiveBuffer = 512 * 1024;
constexpr long kPeerConnectMs = 1000;  // near, but both ends may have much to do

/// Whether the system keeps trusted certificates one by one under their hashes, too. Looking one up
/// there is quicker than reading the bundle of them all, which costs OpenSSL 3 about 20 ms: it is
/// read when a certificate is not found.
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

/// What an address written into a URL is; a name counts as elsewhere.
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

/// Whether `except` names the host: itself, a domain above it (with or without a dot in front), or
/// `*`. We have to know whether a proxy is used, so libcurl's own list is not.
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
  bool proxied = false;
  bool paused = false;
  bool without_bundle = false;  // trusted certificates have been looked up by their hashes only
  std::string form;
  HttpUpload upload;
  std::uint64_t sent = 0;
  std::string refused;  // why we ended it ourselves
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
    if (line.starts_with("HTTP/")) {  // a final status after 100 Continue and the like starts anew
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
      case HttpHandler::Take::stop: break;
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

  /// Where a connection that was kept has ended meanwhile, libcurl begins again on another one. Not
  /// after a part has been sent: a registry that has kept it would have it twice.
  static int on_rewind(void* self, curl_off_t offset, int whence) {
    return whence == SEEK_SET && offset == 0 && static_cast<Transfer*>(self)->sent == 0
               ? CURL_SEEKFUNC_OK
               : CURL_SEEKFUNC_FAIL;
  }

  /// False: out of memory.
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
    ok = ok && add("Expect:");  // a registry that wants a login was asked before
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
    // The site may run its proxy on each node; where that connects to cannot be seen from here.
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
  std::optional<bool> hashed_certificates;  // asked when the first https request needs it
  std::list<std::unique_ptr<Transfer>> transfers;

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

  /// Begins the request anew, with the bundle of trusted certificates, too: nothing of it has been
  /// sent.
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

  /// Tells the handlers of every request that has ended.
  void deliver_ends() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      if (code == CURLE_PEER_FAILED_VERIFICATION && try_with_bundle(message->easy_handle)) continue;
      auto transfer = take(message->easy_handle);  // `message` is gone with the handle
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
    if (code == CURLE_OK) return end;
    if (!transfer.refused.empty()) {
      end.kind = HttpEnd::Kind::failed;
      end.error = Error(ErrorKind::refused, transfer.refused);
      return end;
    }
    end.kind = kind_of_end(transfer.handle, code);
    end.error = explain_curl(transfer.handle, code, transfer.error, transfer.proxied);
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
  // Each request has a handle of its own; connections are the multi handle's. One that is used
  // again carries too much along: the last header's address, which a folded first line of the next
  // answer follows (curl#11103, up to 8.1), and a buffer after a failure.
  CURL* const handle = transfer->handle = curl_easy_init();
  if (handle == nullptr) return Error(ErrorKind::no_space, "start a request: out of memory");
  Transfer* self = transfer.get();
  impl_->transfers.push_back(std::move(transfer));

  bool ok = true;
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
  // One connection a layer is faster than one for all, and HTTP/2's windows would couple the
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
  if (!request.ca.empty()) {
    set(CURLOPT_CAINFO, request.ca.c_str());
  } else if (is_https) {
    if (!impl_->hashed_certificates) impl_->hashed_certificates = has_hashed_certificates();
    self->without_bundle = *impl_->hashed_certificates;
    if (self->without_bundle) set(CURLOPT_CAINFO, static_cast<const char*>(nullptr));
  }
  set(CURLOPT_PROXY, self->proxied ? proxy.c_str() : "");  // empty: nor what the environment says
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (request.form) {
    self->form = *request.form;
    set(CURLOPT_POSTFIELDSIZE, static_cast<long>(self->form.size()));
    set(CURLOPT_POSTFIELDS, self->form.c_str());
  }
  if (request.upload) ok = ok && self->send(request);
  if (!request.accept.empty()) add("Accept: " + request.accept);
  if (!request.authorization.empty()) add("Authorization: " + request.authorization);
  if (request.range_from > 0) add(formatted("Range: bytes={}-", request.range_from));
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
  curl_easy_pause(transfer->handle, CURLPAUSE_CONT);
}

Result<void> HttpClient::wait(std::chrono::milliseconds timeout, std::span<pollfd> others) {
  std::vector<curl_waitfd> watched(others.size());
  for (std::size_t i = 0; i < others.size(); ++i) {
    // CURL_WAIT_* have the values of poll's bits on none but Linux's own: translate.
    watched[i].fd = others[i].fd;
    watched[i].events =
        static_cast<short>(((others[i].events & POLLIN) != 0 ? CURL_WAIT_POLLIN : 0) |
                           ((others[i].events & POLLOUT) != 0 ? CURL_WAIT_POLLOUT : 0));
  }
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
