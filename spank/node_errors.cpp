// Errors of a step's nodes: the nodes' reports, and srun's collection of them.

#include "spank/node_errors.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "spank_container/runtime.h"

namespace spank_container {

// --- error collector ---

namespace {

// milliseconds: longest pause between reports, and longest time in all, before printing
constexpr int64_t kQuiet = 1000, kLongest = 2000;
constexpr int64_t kPatience = 1000;  // milliseconds, for one node's report
constexpr size_t kConnections = 128;
// limits of the collected text in bytes, and of reports; nodes print further errors themselves
constexpr size_t kTextBytes = 64 * 1024, kReports = 64 * 1024;

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void close_and_forget(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

/// Returns the text up to its NUL, with line breaks replaced, whatever a node sends.
template <size_t kSize>
std::string printable(const char (&text)[kSize]) {
  std::string clean(text, std::find(text, text + kSize, '\0'));
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return clean;
}

bool is_node_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

ErrorCollector::~ErrorCollector() { stop(); }

ReportAddress ErrorCollector::open() {
  int ends[2];
  if (listener_ >= 0) return {.port = port_, .token = token_};
  if (::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size()))
    return {};
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  stop_read_ = ends[0];
  stop_write_ = ends[1];
  listener_ = spc_srun_listen(&port_);
  return {.port = port_, .token = token_};
}

void ErrorCollector::start(size_t nodes, Print print) {
  if (listener_ < 0 || thread_.joinable()) return;
  nodes_ = nodes;
  print_ = print;
  sigset_t all, before;  // srun waits for signals in its own threads
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { listen_until_stopped(); });
  } catch (const std::system_error&) {
    close_and_forget(listener_);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ErrorCollector::stop() {
  close_and_forget(stop_write_);  // the thread reads end of file
  if (thread_.joinable()) thread_.join();
  close_and_forget(listener_);
  close_and_forget(stop_read_);
}

void ErrorCollector::listen_until_stopped() {
  for (;;) {
    std::vector<pollfd> waiting{{.fd = stop_read_, .events = POLLIN, .revents = 0}};
    // Above the limit, further connections wait in the kernel's backlog.
    waiting.push_back({.fd = connections_.size() < kConnections ? listener_ : -1,
                       .events = POLLIN,
                       .revents = 0});
    for (const auto& connection : connections_)
      waiting.push_back({.fd = connection.socket, .events = POLLIN, .revents = 0});
    ::poll(waiting.data(), waiting.size(), wait_ms(now_ms()));
    const int64_t now = now_ms();

    std::vector<Connection> going_on;
    for (auto& connection : connections_) {
      if (read_from(connection, now)) {
        going_on.push_back(connection);
      } else {
        ::close(connection.socket);
      }
    }
    connections_ = std::move(going_on);
    accept_all(now);
    const bool all_have_said = nodes_ > 0 && reports_ >= nodes_;
    const bool stopped = waiting[0].revents != 0;
    if (stopped || all_have_said || now - last_ >= kQuiet || now - first_ >= kLongest) print_all();
    if (stopped) break;
  }
  for (auto& connection : connections_) ::close(connection.socket);
  connections_.clear();
}

int ErrorCollector::wait_ms(int64_t now) const {
  int64_t next = -1;
  const auto not_after = [&](int64_t time) { next = next < 0 ? time : std::min(next, time); };
  if (!collected_.empty()) not_after(std::min(last_ + kQuiet, first_ + kLongest));
  for (const auto& connection : connections_) not_after(connection.deadline);
  return next < 0 ? -1 : static_cast<int>(std::max<int64_t>(next - now, 0));
}

void ErrorCollector::accept_all(int64_t now) {
  while (connections_.size() < kConnections) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      // Otherwise poll would report the same connection forever, for example without free
      // descriptors.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) close_and_forget(listener_);
      return;
    }
    Connection connection;
    connection.socket = socket;
    connection.deadline = now + kPatience;
    connections_.push_back(connection);
  }
}

bool ErrorCollector::read_from(Connection& connection, int64_t now) {
  char* bytes = reinterpret_cast<char*>(&connection.report);
  while (connection.received < sizeof connection.report) {
    const ssize_t got = ::recv(connection.socket, bytes + connection.received,
                               sizeof connection.report - connection.received, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got < 0) return now < connection.deadline;
    connection.received += static_cast<size_t>(got);
  }
  // An accepted report will be printed here, so the node does not print it.
  if (take(connection.report, now)) ::send(connection.socket, &kReportTaken, 1, MSG_NOSIGNAL);
  return false;
}

bool ErrorCollector::take(const ErrorReport& report, int64_t now) {
  unsigned differs = 0;  // compares all bytes, so that the time is constant
  for (size_t byte = 0; byte < token_.size(); ++byte) differs |= report.token[byte] ^ token_[byte];
  const ErrorReport wanted;
  if (differs != 0 || !std::equal(report.magic, report.magic + sizeof report.magic, wanted.magic))
    return false;

  const std::string node = printable(report.node);
  const std::string text = printable(report.text);
  if (!is_node_name(node) || reports_ >= kReports) return false;
  if (text.empty()) return has_failed_ = true;
  auto alike = std::find_if(collected_.begin(), collected_.end(),
                            [&](const Collected& one) { return one.text == text; });
  if (alike == collected_.end()) {
    if (text_bytes_ + text.size() > kTextBytes) return false;
    text_bytes_ += text.size();
    if (collected_.empty()) first_ = now;
    alike = collected_.insert(alike, Collected{.text = text, .nodes = {}});
  }
  alike->nodes.push_back(node);
  last_ = now;
  ++reports_;
  return true;
}

void ErrorCollector::print_all() {
  for (const Collected& one : collected_) print_(one.nodes, one.text);
  collected_.clear();
}

// --- error report ---

namespace {

constexpr std::string_view kReportHex = "0123456789abcdef";
// milliseconds in total: a firewall may drop all packets
constexpr int64_t kReportPatience = 1000;

int64_t clock_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

bool becomes_ready(int socket, short what, int64_t deadline) {
  for (;;) {
    const int64_t left = deadline - clock_ms();
    if (left <= 0) return false;
    pollfd waiting{.fd = socket, .events = what, .revents = 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// Starts a connection and returns its socket, or -1 on failure.
int begin_connection(const std::string& host, uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(port);
  const bool is_v4 = ::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && ::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return -1;
  const int made =
      ::socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  const auto* where =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  if (::connect(made, where, is_v4 ? sizeof v4 : sizeof v6) == 0 || errno == EINPROGRESS)
    return made;
  ::close(made);
  return -1;
}

bool hand_over(int socket, const ErrorReport& report, int64_t deadline) {
  const char* bytes = reinterpret_cast<const char*>(&report);
  for (size_t sent = 0; sent < sizeof report;) {
    if (!becomes_ready(socket, POLLOUT, deadline)) return false;
    const ssize_t now = ::send(socket, bytes + sent, sizeof report - sent, MSG_NOSIGNAL);
    if (now < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (now > 0) sent += static_cast<size_t>(now);
  }
  char answer = 0;
  return becomes_ready(socket, POLLIN, deadline) && ::recv(socket, &answer, 1, 0) == 1 &&
         answer == kReportTaken;
}

}  // namespace

std::string ReportAddress::variable() const {
  std::string text = std::to_string(port) + ":";
  for (const unsigned char byte : token) text += {kReportHex[byte >> 4], kReportHex[byte & 15]};
  return text;
}

std::optional<ReportAddress> ReportAddress::parse(std::string_view variable) {
  ReportAddress address;
  const auto colon = variable.find(':');
  if (colon == std::string_view::npos || variable.size() - colon - 1 != 2 * address.token.size())
    return std::nullopt;
  const auto [end, error] = std::from_chars(variable.data(), variable.data() + colon, address.port);
  if (error != std::errc() || end != variable.data() + colon) return std::nullopt;
  for (size_t byte = 0; byte < address.token.size(); ++byte) {
    const auto high = kReportHex.find(variable[colon + 1 + 2 * byte]);
    const auto low = kReportHex.find(variable[colon + 2 + 2 * byte]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    address.token[byte] = static_cast<unsigned char>(high << 4 | low);
  }
  return address;
}

bool report_error(const std::string& host, const ReportAddress& address, std::string_view node,
                  std::string_view text) {
  ErrorReport report;
  report.token = address.token;
  if (node.empty() || node.size() >= sizeof report.node || text.size() >= sizeof report.text)
    return false;
  std::copy(node.begin(), node.end(), report.node);
  std::copy(text.begin(), text.end(), report.text);
  const int socket = begin_connection(host, address.port);
  if (socket < 0) return false;
  const bool taken = hand_over(socket, report, clock_ms() + kReportPatience);
  ::close(socket);
  return taken;
}

}  // namespace spank_container
