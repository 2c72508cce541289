#include "tool/containers/shared_container.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/socket.hpp"
#include "protocol/wire_error.hpp"

namespace spc::tool {
namespace {

constexpr int kBacklog = 4096;
constexpr int kMostAttempts = 1000;

/// What the keeper says to who has asked, with the namespaces' descriptors and a file of the texts.
struct JoinAnswer {
  std::uint64_t made = 0;
  std::uint64_t image = 0,
                settings = 0;  ///< bytes in the file, in this order; the edits are the rest
  WireError error;
};

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const std::string& key) {
  char text[sizeof sockaddr_un::sun_path - 1];
  const auto length =
      std::snprintf(text, sizeof text, "spank-container/%u/%016zx",
                    static_cast<unsigned>(::geteuid()), std::hash<std::string>()(key));
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text,
              static_cast<std::size_t>(length));  // the zero byte before it says: abstract
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                        static_cast<std::size_t>(length));
  return address;
}

const sockaddr* as_sockaddr(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.name);
}

/// Anybody may take a name in this space: what another user says is not listened to, and he is told
/// nothing.
bool is_ours(int socket, pid_t* pid = nullptr) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (pid != nullptr) *pid = peer.pid;
  return peer.uid == ::geteuid();
}

/// Signals of a terminal or of a launcher are for the tasks: they end, and with them the keeper.
/// Only its messages are left of what the first task has open, or who waits for the end of that
/// task's output would wait for us.
void become_keeper(int listener) {
  ::setsid();
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE})
    ::signal(number, SIG_IGN);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(nothing.get(), 0);
  ::dup2(nothing.get(), 1);
  if (listener > 3) ::close_range(3, static_cast<unsigned>(listener) - 1, 0);
  ::close_range(static_cast<unsigned>(listener) + 1, ~0U, 0);
}

void answer(int client, const Result<SharedContainer>& made, int texts, pid_t first) {
  JoinAnswer message;
  pid_t asking = 0;
  if (!is_ours(client, &asking)) return;
  if (!made) {
    if (asking == first) message.error = WireError(made.error());
    (void)send_struct(client, message).has_value();
    return;
  }
  message.made = 1;
  message.image = made->image.size();
  message.settings = made->settings.size();
  const int passed[] = {made->user.get(), made->mounts.get(), texts};
  (void)send_struct(client, message, passed).has_value();
}

/// Serves until everyone has gone.
void serve(int listener, const Result<SharedContainer>& made, int texts, pid_t first) {
  constexpr int kPatience = 60 * 1000;  // ms, for the first one
  std::vector<UniqueFd> clients;
  bool was_there = false;
  for (;;) {
    std::vector<pollfd> polled{{listener, POLLIN, 0}};
    for (const UniqueFd& client : clients) polled.push_back({client.get(), POLLIN, 0});
    // With nobody left there may still be someone at the door.
    const int ready =
        ::poll(polled.data(), polled.size(), clients.empty() ? (was_there ? 0 : kPatience) : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    for (std::size_t i = clients.size(); i > 0; --i) {
      if (polled[i].revents != 0)
        clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
    if (polled[0].revents == 0) continue;
    UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) continue;
    was_there = true;
    answer(client.get(), made, texts, first);
    clients.push_back(std::move(client));
  }
}

[[noreturn]] void keep(int listener, pid_t first,
                       const std::function<Result<SharedContainer>()>& make) {
  become_keeper(listener);
  Result<SharedContainer> made = make();
  UniqueFd texts;
  if (made) {
    if (auto file = sealed_memory_file("container", made->image + made->settings + made->edits)) {
      texts = *std::move(file);
    } else {
      made = std::move(file).error();
    }
  }
  ::dup2(0, 2);
  serve(listener, made, texts.get(), first);
  if (made) made->alive.reset();
  ::_exit(0);
}

/// `answered`: there was a keeper, whatever it has said.
Result<SharedContainer> taken(UniqueFd socket, bool& answered) {
  JoinAnswer message;
  auto descriptors = SPC_TRY(receive_struct(socket.get(), message, 3));
  answered = true;
  SharedContainer container;
  if (message.made == 0) {
    if (message.error.is_set()) return message.error.error();
    container.failed = true;
    return container;
  }
  if (descriptors.size() != 3) return Error(ErrorKind::internal, "no namespaces to join");
  const std::string text = SPC_TRY(read_file(descriptors[2].get(), 64 << 20));
  container.user = std::move(descriptors[0]);
  container.mounts = std::move(descriptors[1]);
  container.image = text.substr(0, message.image);
  container.settings = text.substr(message.image, message.settings);
  container.edits = text.substr(message.image + message.settings);
  container.place = std::move(socket);
  return container;
}

}  // namespace

Result<SharedContainer> join_shared_container(
    const std::string& key, const std::function<Result<SharedContainer>()>& make) {
  const Address address = address_of(key);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!listener || !socket) return Error::from_errno(errno, "make a socket");
    if (::bind(listener.get(), as_sockaddr(address), address.size) == 0) {
      if (::listen(listener.get(), kBacklog) != 0)
        return Error::from_errno(errno, "listen for the other tasks");
      const pid_t first = ::getpid();
      const auto begin = [&]() -> int { keep(listener.get(), first, make); };
      SPC_TRY(Child::run(begin, "share the container", 0)).release();
    } else if (errno != EADDRINUSE) {
      return Error::from_errno(errno, "contact the other tasks");
    }
    listener.reset();
    if (::connect(socket.get(), as_sockaddr(address), address.size) == 0) {
      if (!is_ours(socket.get()))
        return Error(ErrorKind::refused,
                     "the name of the shared container is in use by another user");
      bool answered = false;
      auto container = taken(std::move(socket), answered);
      // A keeper that is gone has ended before it saw us, or was killed: then there is no
      // container, and we may make one.
      const bool gone = !container && !answered &&
                        (container.error().kind() == ErrorKind::unavailable ||
                         container.error().sys_errno() == ECONNRESET);
      if (!gone) return container;
    }
    const timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return Error(ErrorKind::unavailable, "the shared container exits repeatedly");
}

}  // namespace spc::tool
