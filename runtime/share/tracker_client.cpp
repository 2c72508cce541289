// A node's connection to srun's tracker.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "share/tracker.hpp"

namespace spc {

namespace {

constexpr std::uint64_t kSecond = 1'000'000;
// Limit for an answer: srun may serve a thousand nodes on a busy machine.
constexpr std::uint64_t kAnswer = 2 * kSecond;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Result<void> wait_for_srun(int socket, short what, std::uint64_t until) {
  for (;;) {
    const std::uint64_t now = now_us();
    if (now >= until) return Error(ErrorKind::unavailable, "srun does not answer");
    pollfd waiting{.fd = socket, .events = what, .revents = 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>((until - now + 999) / 1000));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Error::from_errno(errno, "wait for srun");
  }
}

Result<UniqueFd> connect_to(const std::string& host, std::uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(port);
  const bool is_v4 = ::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && ::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1)
    return Error(ErrorKind::unavailable, "srun has no address");
  UniqueFd made(
      ::socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) return Error::from_errno(errno, "make a socket");
  const int yes = 1;
  ::setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const auto* where =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  if (::connect(made.get(), where, is_v4 ? sizeof v4 : sizeof v6) == 0) return made;
  if (errno != EINPROGRESS) return Error::from_errno(errno, "connect to srun");
  SPC_TRY(wait_for_srun(made.get(), POLLOUT, now_us() + kSecond));
  int failed = 0;
  socklen_t size = sizeof failed;
  ::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
  if (failed != 0) return Error::from_errno(failed, "connect to srun");
  return made;
}

/// Sends without blocking. Records are small and fit into the socket's buffer as long as srun
/// reads.
Result<void> send_whole(int socket, std::span<const std::byte> bytes) {
  const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return Error::from_errno(errno, "send to srun");
  if (static_cast<std::size_t>(sent) != bytes.size())
    return Error(ErrorKind::unavailable, "srun does not read");
  return {};
}

/// Connects to srun. The token is sent first, because srun drops connections without it.
Result<UniqueFd> greet_srun() {
  const auto address = TrackerAddress::parse(variable(kTrackerVariable));
  if (!address) return Error(ErrorKind::unavailable, "srun does not listen");
  UniqueFd socket = SPC_TRY(connect_to(variable("SLURM_LAUNCH_NODE_IPADDR"), address->port));
  TrackerHello hello;
  hello.token = address->token;
  const std::string node = variable("SLURMD_NODENAME").substr(0, hello.node.size() - 1);
  std::copy(node.begin(), node.end(), hello.node.begin());
  SPC_TRY(send_whole(socket.get(), std::as_bytes(std::span(&hello, 1))));
  return socket;
}

Result<TrackerRecord> receive_answer(int socket) {
  TrackerRecord answer;
  auto bytes = std::as_writable_bytes(std::span(&answer, 1));
  const std::uint64_t until = now_us() + kAnswer;
  while (!bytes.empty()) {
    SPC_TRY(wait_for_srun(socket, POLLIN, until));
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got == 0) return Error(ErrorKind::unavailable, "srun has closed the connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR)
      return Error::from_errno(errno, "receive from srun");
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return answer;
}

}  // namespace

Result<void> TrackerClient::send(TrackerRecord record) {
  if (!tried_) {
    tried_ = true;
    socket_ = SPC_TRY(greet_srun());
  }
  if (!socket_) return Error(ErrorKind::unavailable, "srun is not connected");
  record.node_id =
      static_cast<std::uint32_t>(std::strtoul(variable("SLURM_NODEID").c_str(), nullptr, 10));
  return send_whole(socket_.get(), std::as_bytes(std::span(&record, 1)));
}

Result<TrackerRecord> TrackerClient::ask(const TrackerRecord& question) {
  auto sent = send(question);
  auto answer = sent ? receive_answer(socket_.get()) : Result<TrackerRecord>(sent.error());
  if (!answer) socket_.reset();  // a late answer would be mistaken for that of the next question
  return answer;
}

Result<void> TrackerClient::tell(const TrackerRecord& record) {
  auto sent = send(record);
  if (!sent) socket_.reset();
  return sent;
}

}  // namespace spc
