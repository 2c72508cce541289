#include "error_gathering.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "spank_container/runtime.h"

namespace spank_container {
namespace {

constexpr int64_t
    kQuiet = 300,
    kLongest = 2000;  // milliseconds without another report, and at most in all, before printing
constexpr int64_t kPatience = 1000;  // for one node's report
constexpr size_t kConnections = 128;
constexpr size_t kTextBytes = 64 * 1024,
                 kReports =
                     64 * 1024;  // what more comes is not taken: the nodes print it themselves

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void close_and_forget(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

/// The text up to its end, on one line whatever a node sends.
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

ErrorGathering::~ErrorGathering() { stop(); }

ReportAddress ErrorGathering::open() {
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

void ErrorGathering::start(size_t nodes, Print print) {
  if (listener_ < 0 || thread_.joinable()) return;
  nodes_ = nodes;
  print_ = print;
  sigset_t all, before;  // srun waits for signals in threads of its own
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { listen_until_stopped(); });
  } catch (const std::system_error&) {
    close_and_forget(listener_);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ErrorGathering::stop() {
  close_and_forget(stop_write_);  // the thread reads end of file
  if (thread_.joinable()) thread_.join();
  close_and_forget(listener_);
  close_and_forget(stop_read_);
}

void ErrorGathering::listen_until_stopped() {
  for (;;) {
    std::vector<pollfd> waiting{{.fd = stop_read_, .events = POLLIN, .revents = 0}};
    // With too many connections the next ones wait in the kernel.
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

int ErrorGathering::wait_ms(int64_t now) const {
  int64_t next = -1;
  const auto not_after = [&](int64_t time) { next = next < 0 ? time : std::min(next, time); };
  if (!gathered_.empty()) not_after(std::min(last_ + kQuiet, first_ + kLongest));
  for (const auto& connection : connections_) not_after(connection.deadline);
  return next < 0 ? -1 : static_cast<int>(std::max<int64_t>(next - now, 0));
}

void ErrorGathering::accept_all(int64_t now) {
  while (connections_.size() < kConnections) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      // Without descriptors, for example, poll would report the same connection for ever.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) close_and_forget(listener_);
      return;
    }
    Connection connection;
    connection.socket = socket;
    connection.deadline = now + kPatience;
    connections_.push_back(connection);
  }
}

bool ErrorGathering::read_from(Connection& connection, int64_t now) {
  char* bytes = reinterpret_cast<char*>(&connection.report);
  while (connection.received < sizeof connection.report) {
    const ssize_t got = ::recv(connection.socket, bytes + connection.received,
                               sizeof connection.report - connection.received, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got < 0) return now < connection.deadline;
    connection.received += static_cast<size_t>(got);
  }
  // Taken means that it will be printed: the node says nothing any more.
  if (take(connection.report, now)) ::send(connection.socket, &kReportTaken, 1, MSG_NOSIGNAL);
  return false;
}

bool ErrorGathering::take(const ErrorReport& report, int64_t now) {
  unsigned differs = 0;  // looks at every byte, however many are right
  for (size_t byte = 0; byte < token_.size(); ++byte) differs |= report.token[byte] ^ token_[byte];
  const ErrorReport wanted;
  if (differs != 0 || !std::equal(report.magic, report.magic + sizeof report.magic, wanted.magic))
    return false;

  const std::string node = printable(report.node);
  const std::string text = printable(report.text);
  if (!is_node_name(node) || text.empty() || reports_ >= kReports) return false;
  auto alike = std::find_if(gathered_.begin(), gathered_.end(),
                            [&](const Gathered& one) { return one.text == text; });
  if (alike == gathered_.end()) {
    if (text_bytes_ + text.size() > kTextBytes) return false;
    text_bytes_ += text.size();
    if (gathered_.empty()) first_ = now;
    alike = gathered_.insert(alike, Gathered{.text = text, .nodes = {}});
  }
  alike->nodes.push_back(node);
  last_ = now;
  ++reports_;
  return true;
}

void ErrorGathering::print_all() {
  for (const Gathered& one : gathered_) print_(one.nodes, one.text);
  gathered_.clear();
}

}  // namespace spank_container
