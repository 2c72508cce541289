// The idle processes of scontainer sandbox, a static program of few pages:
//   sandbox SECONDS NAME         process 1 of a sandbox: reaps its orphans, and ends it after the
//                                time (0: none) or with the Slurm step
//   sandbox-image RECORD LOCK    keeps an image mounted while sandboxes use it, then removes its
//                                record
// Unlike container-helper it can be read by users: only then may they join its namespaces.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

/// Descriptors that `scontainer sandbox` passes (tool/commands/sandbox.cpp).
enum KeptFd {
  kBegin =
      3,      ///< sandbox: a pipe, readable when it is recorded; image: without writers when unused
  kStep = 6,  ///< pidfd of slurmstepd, whose end ends this process; or closed
};

/// Waits until `fd` (-1: none) has an event, the step has ended or `milliseconds` (-1: no limit)
/// have passed. Returns whether `fd` has an event.
bool wait_for_event(int fd, int milliseconds) {
  pollfd polled[] = {{fd, POLLIN, 0}, {kStep, POLLIN, 0}};
  if (::fcntl(kStep, F_GETFD) < 0) polled[1].fd = -1;
  int ready = 0;
  do ready = ::poll(polled, 2, milliseconds);
  while (ready < 0 && errno == EINTR);
  return polled[0].revents != 0;
}

int hold_sandbox(long seconds) {
  // Processes of the sandbox have the same user ID, and must not trace this one.
  ::prctl(PR_SET_DUMPABLE, 0);
  ::signal(SIGCHLD, SIG_IGN);  // the kernel then reaps orphans
  char mark = 0;
  if (!wait_for_event(kBegin, -1) || ::read(kBegin, &mark, 1) != 1) return 1;
  ::close(kBegin);
  constexpr long kMost = 2'000'000;  // seconds; poll takes milliseconds in an int
  wait_for_event(-1, seconds > 0 ? static_cast<int>(std::min(seconds, kMost) * 1000) : -1);
  return 0;
}

int hold_image(const char* record, const char* lock_path) {
  ::signal(SIGCHLD, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);  // the sandboxes that use the image decide
  for (;;) {
    const bool unused = wait_for_event(kBegin, -1);
    // A new sandbox opens the pipe under this lock.
    const int lock = ::open(lock_path, O_RDONLY | O_CLOEXEC);
    if (lock >= 0) ::flock(lock, LOCK_EX);
    pollfd in_use{kBegin, 0, 0};
    if (!unused || ::poll(&in_use, 1, 0) != 0) {
      ::unlink(record);
      ::unlink(lock_path);
      return 0;
    }
    ::close(lock);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  if (std::strcmp(argv[0], "sandbox-image") == 0) return hold_image(argv[1], argv[2]);
  return hold_sandbox(std::atol(argv[1]));
}
