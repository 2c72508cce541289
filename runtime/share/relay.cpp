#include "share/relay.hpp"

#include <microhttpd.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

namespace spc {

namespace {

constexpr unsigned kSpare = 2;  // nodes beyond the fan-out whose own source has failed
// Further nodes, accepted only because they would have to ask the registry otherwise.
constexpr unsigned kLast = 4;
constexpr std::size_t kBlock = std::size_t{256} << 10;
constexpr std::size_t kRequestMemory = std::size_t{32} << 10;

MHD_Result respond(MHD_Connection* connection, unsigned status, std::string_view text) {
  MHD_Response* const response = MHD_create_response_from_buffer(
      text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  const MHD_Result queued = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return queued;
}

/// Parses `bytes=N-`. Ignores any other range and sends the whole blob, as the standard allows.
std::uint64_t start_of(const char* range) {
  if (range == nullptr || std::strncmp(range, "bytes=", 6) != 0) return 0;
  char* end = nullptr;
  const std::uint64_t start = std::strtoull(range + 6, &end, 10);
  return std::strcmp(end, "-") == 0 ? start : 0;
}

/// Returns the index of the requesting node, or empty if the request has none.
std::optional<std::uint32_t> node_of(const char* text) {
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const unsigned long number = std::strtoul(text, &end, 10);
  return *end == '\0' && number <= UINT32_MAX ? std::optional(static_cast<std::uint32_t>(number))
                                              : std::nullopt;
}

int nibble(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/// Returns whether the client has disconnected. libmicrohttpd does not check suspended connections.
bool has_hung_up(MHD_Connection* connection) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  pollfd one{.fd = info != nullptr ? info->connect_fd : -1, .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

/// A request, from its first byte to the last one of the answer.
struct Relay::Request {
  Relay* relay = nullptr;
  MHD_Connection* connection = nullptr;
  const SpoolIndex::Entry* entry = nullptr;  // null: it waits until the index has the blob
  Digest blob;
  std::uint64_t from = 0;             // offset at which the answer begins
  std::uint64_t at = 0;               // offset of the next byte
  std::optional<std::uint32_t> node;  // node for which it is counted
  bool is_gone = false;               // the client has disconnected
};

/// Callbacks of libmicrohttpd.
struct Relay::Callbacks {
  static MHD_Result answer(void* self, MHD_Connection* connection, const char* url,
                           const char* method, const char*, const char*, std::size_t*,
                           void** state) {
    auto& relay = *static_cast<Relay*>(self);
    if (*state == nullptr) {
      ++relay.open_;
      *state = new Request{.relay = &relay, .connection = connection};
      return MHD_YES;  // answering before the end of the request would close the connection
    }
    if (std::strcmp(method, "GET") != 0 && std::strcmp(method, "HEAD") != 0)
      return respond(connection, 405, "");
    return static_cast<MHD_Result>(relay.answer(connection, url, *static_cast<Request*>(*state)));
  }
  static void completed(void* self, MHD_Connection*, void** state, MHD_RequestTerminationCode) {
    if (*state != nullptr) static_cast<Relay*>(self)->forget(static_cast<Request*>(*state));
    *state = nullptr;
  }
  static ssize_t read(void* state, std::uint64_t at, char* into, std::size_t most) {
    auto& request = *static_cast<Request*>(state);
    return request.relay->read(request, request.from + at, into, most);
  }
};

Result<std::unique_ptr<Relay>> Relay::create(const SpoolIndex& index, int listener, int spool,
                                             const RelayLimits& limits) {
  std::unique_ptr<Relay> relay(new Relay(index, spool, limits));
  relay->server_ = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr, &Callbacks::answer,
      relay.get(), MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
      limits.connections, MHD_OPTION_CONNECTION_TIMEOUT, limits.stalled_seconds,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kRequestMemory, MHD_OPTION_NOTIFY_COMPLETED,
      &Callbacks::completed, relay.get(), MHD_OPTION_END);
  if (relay->server_ == nullptr) return Error(ErrorKind::unavailable, "start the HTTP server");
  const MHD_DaemonInfo* const info = MHD_get_daemon_info(relay->server_, MHD_DAEMON_INFO_EPOLL_FD);
  if (info == nullptr)
    return Error(ErrorKind::unavailable, "start the HTTP server: it has no epoll");
  relay->events_ = info->epoll_fd;
  return relay;
}

Relay::~Relay() {
  for (const Request* request : waiting_) MHD_resume_connection(request->connection);
  waiting_.clear();
  import_ended_ = true;
  if (server_ != nullptr) MHD_stop_daemon(server_);
}

void Relay::wait(std::chrono::milliseconds patience, std::span<const int> others) {
  if (!waiting_.empty()) patience = std::min(patience, std::chrono::milliseconds(100));
  if (MHD_UNSIGNED_LONG_LONG limit = 0; MHD_get_timeout(server_, &limit) == MHD_YES) {
    patience = std::min(patience, std::chrono::milliseconds(std::min(limit, 1000ULL)));
  }
  std::vector<pollfd> watched{{.fd = events_, .events = POLLIN, .revents = 0}};
  for (const int other : others) watched.push_back({.fd = other, .events = POLLIN, .revents = 0});
  ::poll(watched.data(), watched.size(), static_cast<int>(patience.count()));
}

void Relay::work() {
  resume_some();
  MHD_run(server_);
}

void Relay::end_of_import() {
  import_ended_ = true;
  ended_ = std::chrono::steady_clock::now();
}

bool Relay::is_over() const {
  if (!import_ended_) return false;
  const auto now = std::chrono::steady_clock::now();
  return now - ended_ >= limits_.after_import || (open_ == 0 && now - last_ >= limits_.idle);
}

/// Compares in constant time.
bool Relay::has_key(MHD_Connection* connection) const {
  const char* const shown =
      MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
  constexpr std::string_view kScheme = "Bearer ";
  if (shown == nullptr || std::strncmp(shown, kScheme.data(), kScheme.size()) != 0) return false;
  const std::string_view key = shown + kScheme.size();
  if (key.size() != 2 * index_.key.size()) return false;
  int difference = 0;
  for (std::size_t i = 0; i < index_.key.size(); ++i)
    difference |= (nibble(key[2 * i]) << 4 | nibble(key[2 * i + 1])) ^ index_.key[i];
  return difference == 0;
}

/// Returns whether one more node can be served.
bool Relay::admit(std::uint32_t node, bool has_no_other, Request& request) {
  if (request.node) return true;
  if (!served_.contains(node) &&
      served_.size() >= index_.fanout + kSpare + (has_no_other ? kLast : 0))
    return false;
  ++served_[node];
  request.node = node;
  return true;
}

std::string Relay::progress() const {
  const std::uint64_t here = index_.here, leader = index_.leader;
  const std::uint64_t rate =
      std::max(index_.rate.load(), static_cast<std::uint64_t>(they_get_.best()));
  return std::to_string(here) + " " + std::to_string(leader == 0 ? here : leader) + " " +
         std::to_string(rate);
}

int Relay::answer(MHD_Connection* connection, std::string_view url, Request& request) {
  if (request.is_gone) return MHD_NO;
  if (!has_key(connection)) return respond(connection, 401, "");
  last_ = std::chrono::steady_clock::now();
  if (url == "/alive") return respond(connection, 200, progress());
  const auto blob = Digest::parse(url.substr(std::min(url.rfind('/') + 1, url.size())));
  const auto node = node_of(MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "node"));
  if (!blob || !node) return respond(connection, 404, "");
  const bool has_no_other =
      MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "last") != nullptr;
  if (!admit(*node, has_no_other, request)) return respond(connection, 503, "");
  request.blob = *blob;
  const auto* const entry = index_.find(*blob);
  if (entry != nullptr) return answer_blob(connection, *entry, request);
  if (index_.is_closed != 0 || import_ended_) return respond(connection, 404, "");
  suspend(request);
  return MHD_YES;
}

int Relay::answer_blob(MHD_Connection* connection, const SpoolIndex::Entry& entry,
                       Request& request) {
  const std::uint64_t from =
      start_of(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_RANGE));
  if (entry.state == BlobState::gone || (!will_grow(entry) && entry.have < entry.size))
    return respond(connection, 404, "");
  if (from > 0 && from >= entry.size) return respond(connection, 416, "");
  request.entry = &entry;
  request.from = request.at = from;
  MHD_Response* const response = MHD_create_response_from_callback(
      entry.size - from, kBlock, &Callbacks::read, &request, nullptr);
  if (response == nullptr) return MHD_NO;
  if (from > 0) {
    const std::string range = "bytes " + std::to_string(from) + "-" +
                              std::to_string(entry.size - 1) + "/" + std::to_string(entry.size);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_RANGE, range.c_str());
  }
  const MHD_Result queued = MHD_queue_response(connection, from > 0 ? 206 : 200, response);
  MHD_destroy_response(response);
  return queued;
}

ssize_t Relay::read(Request& request, std::uint64_t at, char* into, std::size_t most) {
  const SpoolIndex::Entry& entry = *request.entry;
  request.at = at;
  last_ = std::chrono::steady_clock::now();
  const bool grows = will_grow(entry);  // read before `have`, so that the last bytes are not lost
  const std::uint64_t have = entry.have.load(std::memory_order_acquire);
  if (entry.state == BlobState::gone || request.is_gone) return MHD_CONTENT_READER_END_WITH_ERROR;
  if (have <= at) {
    if (!grows) return MHD_CONTENT_READER_END_WITH_ERROR;
    suspend(request);
    return 0;
  }
  const ssize_t got =
      ::pread(spool_, into, static_cast<std::size_t>(std::min<std::uint64_t>(most, have - at)),
              static_cast<off_t>(entry.offset + at));
  if (got <= 0) return MHD_CONTENT_READER_END_WITH_ERROR;
  const std::chrono::duration<double> now = last_.time_since_epoch();
  if (request.node) they_get_.add(*request.node, now.count(), static_cast<double>(got));
  return got;
}

void Relay::suspend(Request& request) {
  MHD_suspend_connection(request.connection);
  waiting_.push_back(&request);
}

bool Relay::can_go_on(const Request& request) const {
  if (request.entry == nullptr)
    return import_ended_ || index_.is_closed != 0 || index_.find(request.blob) != nullptr;
  return !will_grow(*request.entry) ||
         request.entry->have.load(std::memory_order_acquire) > request.at;
}

void Relay::resume_some() {
  std::erase_if(waiting_, [this](Request* request) {
    if (!can_go_on(*request) && !(request->is_gone = has_hung_up(request->connection)))
      return false;
    MHD_resume_connection(request->connection);
    return true;
  });
}

void Relay::forget(Request* request) {
  --open_;
  last_ = std::chrono::steady_clock::now();
  std::erase(waiting_, request);
  if (request->node && --served_[*request->node] == 0) {
    served_.erase(*request->node);
    they_get_.forget(*request->node);
  }
  delete request;
}

}  // namespace spc
