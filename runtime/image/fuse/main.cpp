// `fuse OFFSET`: serves the squashfs at OFFSET of a file through a FUSE device, see protocol/fuse.hpp.
//
// Order: what needs system calls that the sandbox forbids, then the sandbox, then the first byte of the file.

#include <malloc.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <latch>
#include <thread>

#include "base/file.hpp"
#include "image/fuse/file_system.hpp"
#include "image/fuse/sandbox.hpp"
#include "protocol/fuse.hpp"

namespace spc::fuse {
namespace {

constexpr unsigned kMostThreads = 16;

/// As many as there are processors for us, and two at least, so that one large block does not hold up everybody.
unsigned thread_count() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  const int count = ::sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
  return std::clamp(static_cast<unsigned>(count), 2U, kMostThreads);
}

/// A thread that answers requests from when it may begin until the file system is unmounted.
void answer_requests(fuse_session* session, std::latch& started, std::latch& may_begin) {
  started.count_down();
  may_begin.wait();
  fuse_buf request{};
  for (;;) {
    const int got = ::fuse_session_receive_buf(session, &request);
    if (got == -EINTR) continue;
    if (got <= 0) return;
    ::fuse_session_process_buf(session, &request);
  }
}

Result<fuse_session*> make_session(FileSystem& files) {
  ::fuse_set_log_func([](fuse_log_level, const char*, va_list) {});
  // libfuse tells some errors by perror(), which makes a descriptor unless the stream has been used: the sandbox forbids that.
  ::fwide(stderr, -1);
  std::string program = "fuse";
  char* arguments[] = {program.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments);
  fuse_session* session = ::fuse_session_new(&args, &FileSystem::operations(), sizeof(fuse_lowlevel_ops), &files);
  const std::string device = "/dev/fd/" + std::to_string(kFuseDevice);
  if (session == nullptr || ::fuse_session_mount(session, device.c_str()) != 0) {
    return Error(ErrorKind::system, "serve a file system: libfuse cannot use the device");
  }
  return session;
}

/// A message on the status socket: write() and read() keep message borders, and the sandbox allows no other calls.
void send_status(const FuseStatus& status) {
  (void)!::write(kFuseStatus, &status, sizeof status);
}

bool await_mount() {
  FuseStatus answer;
  ssize_t got = 0;
  do {
    got = ::read(kFuseStatus, &answer, sizeof answer);
  } while (got < 0 && errno == EINTR);
  return got == sizeof answer && !answer.error.is_set();
}

Result<void> run(std::uint64_t offset, bool for_root) {
  const auto files = for_root ? FileSystem::create(0, 0) : FileSystem::create(::getuid(), ::getgid());
  fuse_session* session = SPC_TRY(make_session(*files));

  const unsigned count = thread_count();
  std::latch started(count);
  std::latch may_begin(1);
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < count; ++i) {
    threads.emplace_back([&] { answer_requests(session, started, may_begin); });
  }
  started.wait();  // a thread's own start needs calls that are forbidden later
  const auto served = [&]() -> Result<void> {
    SPC_TRY_DURING("entering the sandbox", enter_fuse_sandbox());
    files->serve(SPC_TRY(ImageBytes::open(kFuseImage, offset)));
    return {};
  }();
  send_status(served ? FuseStatus() : FuseStatus{WireError(served.error())});
  if (!served || !await_mount()) ::_exit(1);
  ::close(kFuseStatus);
  may_begin.count_down();
  for (auto& thread : threads) thread.join();
  ::_exit(0);  // nothing is left to run: exit handlers need calls the sandbox forbids
}

Result<void> guarded(std::uint64_t offset, bool for_root) {
  try {
    return run(offset, for_root);
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, std::string("serve a file system: ") + e.what());
  }
}

}  // namespace
}  // namespace spc::fuse

int main(int argc, char** argv) {
  std::uint64_t offset = 0;
  const bool for_root = argc == 2 && std::string_view(argv[1]).ends_with(spc::kFuseForRoot);
  const char* const end = argc == 2 ? argv[1] + std::strlen(argv[1]) - (for_root ? std::strlen(spc::kFuseForRoot) : 0) : nullptr;
  const bool is_number = argc == 2 && std::from_chars(argv[1], end, offset).ptr == end && end != argv[1];
  if (!is_number || ::fcntl(spc::kFuseStatus, F_GETFD) < 0) {
    constexpr char kUsage[] = "fuse is started by the agent, not manually\n";
    (void)spc::write_all(STDERR_FILENO, std::string_view(kUsage));
    return 2;
  }
  ::syscall(SYS_close_range, spc::kFuseStatus + 1, ~0U, 0);
  // In a process group of its own and deaf to all signals but SIGKILL: those of a step are meant for its tasks, which need
  // their files to react.
  ::setsid();
  // The tasks outlive an agent that is killed, and so must their files. Until the mount exists the status socket tells.
  ::prctl(PR_SET_PDEATHSIG, 0);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);  // blocks come and go all the time: from the heap, not each from the kernel
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  ::mallopt(M_ARENA_MAX, 4);
  const auto failed = spc::fuse::guarded(offset, for_root);
  if (!failed) spc::fuse::send_status({spc::WireError(failed.error())});
  ::_exit(1);
}
