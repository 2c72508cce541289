// The program `relay`, started by `import` as the service user: sends to other nodes of the step
// what this one fetches. See spool.hpp for its life, relay.hpp for what it answers.

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>

#include "base/file.hpp"
#include "base/process/sandbox.hpp"
#include "image/relay/relay.hpp"

using namespace spc;

namespace {

constexpr rlim_t kDescriptors = 128;

bool is_over(int descriptor) {
  pollfd one{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) != 0;
}

/// Nothing can be opened, connected or started, and no file be written: the limit on their size is
/// 0.
Result<void> enter_relay_sandbox() {
  return enter_sandbox(
      {// descriptors it has, and those that it accepts
       SCMP_SYS(accept4),
       SCMP_SYS(read),
       SCMP_SYS(pread64),
       SCMP_SYS(write),
       SCMP_SYS(recvfrom),
       SCMP_SYS(sendto),
       SCMP_SYS(sendmsg),
       SCMP_SYS(sendfile),
       SCMP_SYS(writev),
       SCMP_SYS(close),
       SCMP_SYS(shutdown),
       SCMP_SYS(getsockname),
       SCMP_SYS(setsockopt),
       SCMP_SYS(getsockopt),
       SCMP_SYS(fcntl),
       SCMP_SYS(poll),
       SCMP_SYS(ppoll),
       SCMP_SYS(epoll_ctl),
       SCMP_SYS(epoll_wait),
       SCMP_SYS(epoll_pwait),
       // memory and time
       {SCMP_SYS(mmap), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}},
       SCMP_SYS(futex),
       SCMP_SYS(sched_yield),
       SCMP_SYS(clock_gettime),
       SCMP_SYS(gettimeofday),
       SCMP_SYS(restart_syscall)},
      {.descriptors = kDescriptors, .memory = rlim_t{512} << 20});
}

Result<void> serve() {
  const SharedBoard board = SPC_TRY(SharedBoard::open(kRelayBoard));
  ::close(kRelayBoard);
  const auto relay = SPC_TRY(Relay::create(*board, kRelayListener, kRelaySpool));
  std::tm date{};
  const std::time_t now = std::time(nullptr);
  ::gmtime_r(&now, &date);  // opens the file of time zones, the first time: an answer has a date
  SPC_TRY(enter_relay_sandbox());
  bool import_runs = true;
  while (!is_over(kRelayAgent) && !relay->is_over()) {
    // Without `import` its end of the pipe is readable for ever.
    const std::array<int, 3> watched{kRelayAgent, kRelayWake, kRelayImport};
    relay->wait(std::chrono::seconds(1), std::span(watched).first(import_runs ? 3 : 2));
    std::uint64_t told = 0;  // read before the board is: what is told afterwards wakes us again
    if (is_over(kRelayWake)) [[maybe_unused]]
      const ssize_t got = ::read(kRelayWake, &told, sizeof told);
    if (import_runs && is_over(kRelayImport)) {
      import_runs = false;
      relay->end_of_import();
    }
    relay->work();
  }
  ::_exit(0);  // the step is over: nobody is to wait for us
}

}  // namespace

int main() {
  if (::fcntl(kRelayAgent, F_GETFD) < 0) {
    constexpr char kUsage[] = "relay is started by import, not manually\n";
    (void)write_all(STDERR_FILENO, std::string_view(kUsage));
    return 2;
  }
  ::mallopt(M_ARENA_MAX, 1);
  std::signal(SIGPIPE, SIG_IGN);
  const auto served = serve();
  ::_exit(served ? 0 : 1);
}
