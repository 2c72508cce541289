#include "error_report.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace spank_container {
namespace {

constexpr std::string_view kReportHex = "0123456789abcdef";
constexpr int64_t kReportPatience =
    1000;  // milliseconds, for all of it: a firewall may swallow everything

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

/// A socket whose connection is under way; -1 if there can be none.
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
