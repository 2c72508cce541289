#include "image/fuse/workers.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "base/process/processors.hpp"

namespace spc::fuse {
namespace {

/// Does nothing but make a thread return from waiting for a request.
constexpr int kWake = SIGUSR1;

/// As many as there are processors for us, and two at least, so that one large block does not hold
/// up everybody.
unsigned thread_count(unsigned most) { return std::clamp(usable_processors(), 2U, most); }

}  // namespace

Workers::Workers(fuse_session* session)
    : session_(session), working_(thread_count(kMost)), started_(working_) {
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ::sigaction(kWake, &nothing, nullptr);
  const unsigned wanted = working_;
  try {
    for (std::size_t i = 0; i < wanted; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {  // its user may have no more processes: one thread will do
    if (threads_.empty()) throw;
    const auto fewer = wanted - static_cast<unsigned>(threads_.size());
    working_ -= fewer;
    started_.count_down(fewer);
  }
  started_.wait();
}

void Workers::work(std::size_t number) {
  sigset_t wake;
  ::sigemptyset(&wake);
  ::sigaddset(&wake, kWake);
  ::pthread_sigmask(SIG_UNBLOCK, &wake, nullptr);
  ids_[number] = ::gettid();
  started_.count_down();
  may_begin_.wait();
  fuse_buf request{};
  while (!finishing_) {
    const int got = ::fuse_session_receive_buf(session_, &request);
    if (got == -EINTR) continue;  // and then there is no request
    if (got <= 0) break;
    ::fuse_session_process_buf(session_, &request);
  }
  if (--working_ == 0) ::_exit(0);  // exit handlers need calls that the sandbox forbids
}

void Workers::finish() {
  constexpr unsigned kPause = 1000;  // microseconds
  finishing_ = true;
  for (;;) {  // one that was just about to wait is woken the next time
    for (const pid_t thread : ids_) {
      if (thread != 0) ::syscall(SYS_tgkill, ::getpid(), thread, kWake);
    }
    ::usleep(kPause);
  }
}

void Workers::await() {
  for (auto& thread : threads_) thread.join();
  ::_exit(0);
}

}  // namespace spc::fuse
