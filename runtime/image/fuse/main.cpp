// `fuse OFFSET`: serves the image at OFFSET of a file through a FUSE device, or, given a socket
// instead of the file, what is passed there; see protocol/fuse.hpp.
//
// Order: what needs system calls that the sandbox forbids, then the sandbox, then the first byte of
// the file.

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <system_error>

#include "base/file.hpp"
#include "base/socket.hpp"
#include "image/fuse/file_system.hpp"
#include "image/fuse/loan.hpp"
#include "image/fuse/sandbox.hpp"
#include "image/fuse/workers.hpp"
#include "protocol/fuse.hpp"

namespace spc::fuse {
namespace {

Result<fuse_session*> make_session(FileSystem& files) {
  ::fuse_set_log_func([](fuse_log_level, const char*, va_list) {});
  // libfuse tells some errors by perror(), which makes a descriptor unless the stream has been
  // used: the sandbox forbids that.
  ::fwide(stderr, -1);
  std::string program = "fuse";
  char* arguments[] = {program.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments);
  fuse_session* session =
      ::fuse_session_new(&args, &FileSystem::operations(), sizeof(fuse_lowlevel_ops), &files);
  const std::string device = "/dev/fd/" + std::to_string(kFuseDevice);
  if (session == nullptr || ::fuse_session_mount(session, device.c_str()) != 0) {
    return Error(ErrorKind::system, "serve a file system: libfuse cannot use the device");
  }
  return session;
}

void send_status(const FuseStatus& status) {
  [[maybe_unused]] const auto sent = send_struct(kFuseStatus, status);
}

bool may_begin() {
  FuseOrder order{};
  return receive_struct(kFuseStatus, order) && order == FuseOrder::begin;
}

/// The agent's, for as long as it lives. What it serves then, the server goes on with alone.
[[noreturn]] void obey_orders(Workers& workers, const FileSystem& files, const FuseLoan& served) {
  FuseOrder order{};
  while (const auto passed = receive_struct(kFuseStatus, order, 1)) {
    if (order == FuseOrder::lend && passed->size() == 1) {
      files.await_init();
      lend(passed->front().get(), served);
    }
    if (order == FuseOrder::finish) workers.finish();
  }
  workers.await();
}

Result<void> run(FuseLoan served) {
  struct stat image {};
  const bool waits = ::fstat(kFuseImage, &image) == 0 && S_ISSOCK(image.st_mode);
  const bool joins = waits && SPC_TRY(borrow(served));
  const auto files =
      served.for_root ? FileSystem::create(0, 0) : FileSystem::create(::getuid(), ::getgid());
  fuse_session* session = SPC_TRY(make_session(*files));
  Workers workers(session);
  const auto ready = [&]() -> Result<void> {
    SPC_TRY_DURING("entering the sandbox", enter_fuse_sandbox());
    files->serve(SPC_TRY(open_image(kFuseImage, served.offset)));
    return {};
  }();
  send_status(ready ? FuseStatus() : FuseStatus{WireError(ready.error())});
  if (!ready || (!joins && !may_begin())) ::_exit(1);
  if (joins) {
    auto request = first_request();
    const fuse_buf buffer{
        .size = request.size(), .flags = {}, .mem = request.data(), .fd = -1, .pos = 0};
    ::fuse_session_process_buf(session, &buffer);
  }
  workers.begin();
  obey_orders(workers, *files, served);
}

Result<void> guarded(const FuseLoan& served) {
  try {
    return run(served);
  } catch (const std::system_error& e) {
    return Error::from_errno(e.code().value(), "serve a file system: start a thread");
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, std::string("serve a file system: ") + e.what());
  }
}

}  // namespace
}  // namespace spc::fuse

int main(int argc, char** argv) {
  std::uint64_t offset = 0;
  const bool for_root = argc == 2 && std::string_view(argv[1]).ends_with(spc::kFuseForRoot);
  const char* const end =
      argc == 2 ? argv[1] + std::strlen(argv[1]) - (for_root ? std::strlen(spc::kFuseForRoot) : 0)
                : nullptr;
  const bool is_number =
      argc == 2 && std::from_chars(argv[1], end, offset).ptr == end && end != argv[1];
  if (!is_number || ::fcntl(spc::kFuseStatus, F_GETFD) < 0) {
    constexpr char kUsage[] = "fuse is started by the agent, not manually\n";
    (void)spc::write_all(STDERR_FILENO, std::string_view(kUsage));
    return 2;
  }
  ::syscall(SYS_close_range, spc::kFuseStatus + 1, ~0U, 0);
  // Deaf to all signals but SIGKILL and SIGSTOP: those of a step are meant for its tasks, which
  // need their files to react. It stays in the agent's process group, for which slurmstepd waits.
  // The tasks outlive an agent that is killed, and so must their files. Until the mount exists the
  // status socket tells.
  ::prctl(PR_SET_PDEATHSIG, 0);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::mallopt(M_MMAP_THRESHOLD,
            4 << 20);  // blocks come and go all the time: from the heap, not each from the kernel
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  ::mallopt(M_ARENA_MAX, 4);
  const auto failed = spc::fuse::guarded({.offset = offset, .for_root = for_root});
  if (!failed) spc::fuse::send_status({spc::WireError(failed.error())});
  ::_exit(1);
}
