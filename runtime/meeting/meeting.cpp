#include "meeting/meeting.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/clock.hpp"

namespace spc {
namespace {

constexpr std::int64_t kTokenPatience = 1000;  // milliseconds
constexpr std::int64_t kFirstLine = 1000,
                       kLongestPause =
                           15'000;  // then fewer and fewer: they stay in the job's output
constexpr std::int64_t kLook = 250;
constexpr std::size_t kSpare = 16, kMostNodes = 16'384;
constexpr int kAtOnce = 4;  // records of one connection before the next one is looked at

std::int64_t now_ms() { return static_cast<std::int64_t>(now_us() / 1000); }

Gatherings::Seconds time_of(std::uint64_t us) { return std::chrono::microseconds(us); }

PeerAddress address_of(const sockaddr_in6& from) {
  PeerAddress address;
  if (from.sin6_family == AF_INET6) {
    std::copy_n(from.sin6_addr.s6_addr, address.ip.size(), address.ip.begin());
  } else if (from.sin6_family == AF_INET) {
    address.ip[10] = address.ip[11] = 0xff;
    const auto* v4 =
        reinterpret_cast<const std::uint8_t*>(&reinterpret_cast<const sockaddr_in&>(from).sin_addr);
    std::copy_n(v4, 4, address.ip.begin() + 12);
  }
  return address;
}

/// srun needs descriptors for the output of its tasks.
std::size_t most_connections(std::uint32_t nodes) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 0;
  return std::min<std::size_t>(
      (nodes == 0 ? kMostNodes : std::min<std::size_t>(nodes, kMostNodes)) + kSpare,
      files.rlim_cur / 2);
}

}  // namespace

Result<MeetingAddress> Meeting::open(const PortRange& ports, std::uint32_t fanout) {
  int ends[2];
  fanout_ = std::max(fanout, std::uint32_t{1});
  if (listener_) return MeetingAddress{.port = port_, .token = token_};
  if (::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size()))
    return Error::from_errno(errno, "get a token");
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
  stop_read_.reset(ends[0]);
  stop_write_.reset(ends[1]);
  events_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!events_) return Error::from_errno(errno, "listen");
  Listener listener = SPC_TRY(Listener::open(ports));
  for (const int watched : {stop_read_.get(), listener.socket.get()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = watched}};
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, watched, &event) != 0)
      return Error::from_errno(errno, "watch a socket");
  }
  listener_ = std::move(listener.socket);
  port_ = listener.port;
  return MeetingAddress{.port = port_, .token = token_};
}

void Meeting::start(std::uint32_t nodes, const std::string& image, Say say) {
  if (!listener_ || thread_.joinable()) return;
  image_ = image;
  say_ = std::move(say);
  most_ = most_connections(nodes);
  gatherings_ = Gatherings(4 * most_, fanout_);
  sigset_t all, before;  // srun waits for signals in threads of its own
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error&) {
    listener_.reset();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Meeting::stop() {
  stop_write_.reset();  // the thread reads end of file
  if (thread_.joinable()) {
    thread_.join();
    for (const auto& line :
         {statistics_line(gatherings_, image_), statistics_json(gatherings_, image_)}) {
      if (!line.empty() && say_) say_(About::all, line);
    }
  }
  connections_.clear();
  listener_.reset();
  stop_read_.reset();
  events_.reset();
}

void Meeting::serve() try {
  for (;;) {
    epoll_event ready[64];
    const int count = ::epoll_wait(events_.get(), ready, 64, wait_ms());
    if (count < 0 && errno != EINTR) return;
    const std::int64_t now = now_ms();
    for (int i = 0; i < count; ++i) {
      const int socket = ready[i].data.fd;
      if (socket == stop_read_.get()) return;
      if (listener_ && socket == listener_.get()) {
        accept_all(now);
      } else if (const auto found = connections_.find(socket);
                 found != connections_.end() && !read_some(found->second)) {
        close(socket);
      }
    }
    if (silent_ > 0) drop_silent(now);
    say_progress(now);
  }
} catch (const std::exception&) {
  // Out of memory: the nodes ask the registry.
}

int Meeting::wait_ms() const {
  return silent_ > 0 || next_line_ > 0 ? static_cast<int>(kLook) : -1;
}

void Meeting::accept_all(std::int64_t now) {
  for (;;) {
    sockaddr_in6 from{};
    socklen_t size = sizeof from;
    UniqueFd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // Without descriptors, for example, the same connection would be reported for ever.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) listener_.reset();
      return;
    }
    const int number = socket.get();
    epoll_event event{.events = EPOLLIN, .data = {.fd = number}};
    if (connections_.size() >= most_ ||
        ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, number, &event) != 0)
      continue;
    connections_.emplace(number, Connection{std::move(socket), now + kTokenPatience,
                                            MeetingTalk(gatherings_, address_of(from))});
    ++silent_;
  }
}

void Meeting::drop_silent(std::int64_t now) {
  std::vector<int> late;
  for (const auto& [number, connection] : connections_) {
    if (connection.deadline != 0 && now >= connection.deadline) late.push_back(number);
  }
  for (const int number : late) close(number);
}

void Meeting::close(int socket) {
  const auto found = connections_.find(socket);
  if (found->second.deadline != 0) --silent_;
  found->second.talk.end();
  connections_.erase(found);
}

bool Meeting::read_some(Connection& connection) {
  for (int records = 0; records < kAtOnce;) {
    const auto room = connection.talk.room();
    const ssize_t got = ::recv(connection.socket.get(), room.data(), room.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    if (static_cast<std::size_t>(got) == room.size()) ++records;
    const auto heard =
        connection.talk.take(static_cast<std::size_t>(got), token_, time_of(now_us()));
    if (connection.deadline != 0 && connection.talk.has_greeted()) {
      connection.deadline = 0;
      --silent_;
    }
    if (heard.kind == MeetingKind::progress && next_line_ == 0) next_line_ = now_ms() + kFirstLine;
    // A node that reads its answers has room for one.
    const bool is_told =
        !heard.answer || ::send(connection.socket.get(), &*heard.answer, sizeof *heard.answer,
                                MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof *heard.answer;
    if (!heard.goes_on || !is_told) return false;
  }
  return true;
}

void Meeting::say_progress(std::int64_t now) {
  if (next_line_ == 0 || now < next_line_) return;
  const std::string line = progress_line(gatherings_, image_);
  if (line.empty()) {
    next_line_ = 0;
    return;
  }
  pause_ = std::min(pause_ == 0 ? 2000 : 2 * pause_, kLongestPause);
  next_line_ = now + pause_;
  if (line != last_line_ && say_) say_(About::progress, line);
  last_line_ = line;
}

}  // namespace spc
