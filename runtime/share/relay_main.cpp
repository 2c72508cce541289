// The program `relay`, started by `import` as the service user: sends the blobs that this node
// fetches to other nodes of the step. See spool.hpp for its lifetime, relay.hpp for its protocol.

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
#include "share/relay.hpp"

using namespace spc;

namespace {

constexpr rlim_t kDescriptors = 128;

bool is_over(int descriptor) {
  pollfd one{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) != 0;
}

/// Forbids opening, connecting, starting programs, and writing files: RLIMIT_FSIZE is 0.
Result<void> enter_relay_sandbox() {
  return enter_sandbox(
      {// inherited and accepted descriptors
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
  const SharedSpoolIndex index = SPC_TRY(SharedSpoolIndex::open(kRelayIndex));
  ::close(kRelayIndex);
  const auto relay = SPC_TRY(Relay::create(*index, kRelayListener, kRelaySpool));
  std::tm date{};
  const std::time_t now = std::time(nullptr);
  ::gmtime_r(&now, &date);  // the first call opens the time zone file; answers have a date
  SPC_TRY(enter_relay_sandbox());
  bool import_runs = true;
  while (!is_over(kRelayAgent) && !relay->is_over()) {
    // When `import` has ended, its end of the pipe stays readable: stop polling it.
    const std::array<int, 3> watched{kRelayAgent, kRelayWake, kRelayImport};
    relay->wait(std::chrono::seconds(1), std::span(watched).first(import_runs ? 3 : 2));
    // Reset the eventfd before the index is read, so that later changes wake the relay again.
    std::uint64_t told = 0;
    if (is_over(kRelayWake)) [[maybe_unused]]
      const ssize_t got = ::read(kRelayWake, &told, sizeof told);
    if (import_runs && is_over(kRelayImport)) {
      import_runs = false;
      relay->end_of_import();
    }
    relay->work();
  }
  ::_exit(0);  // the step is over: do not make the agent wait
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
