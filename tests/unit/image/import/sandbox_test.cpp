#include "image/import/import.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "share/spool.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

struct Scene {
  Scene() {
    std::string name = "/tmp/spc-import-sandbox-XXXXXX";
    directory = ::mkdtemp(name.data());
    std::filesystem::create_directory(directory / "store");
    std::filesystem::create_directory(directory / "shared");
  }
  ~Scene() { std::filesystem::remove_all(directory); }
  std::filesystem::path directory;
};

/// Runs the attempt in a sandboxed child. Returns 0 if it succeeded, otherwise its errno.
int errno_of(const std::function<bool()>& attempt) {
  const Scene scene;
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    const int store = ::open((scene.directory / "store").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    (void)!::chdir(scene.directory.c_str());
    const auto entered = enter_import_sandbox(
        {.store = store, .paths = {scene.directory / "shared", "/nonexistent"}});
    if (!entered) ::_exit(255);
    errno = 0;
    ::_exit(attempt() ? 0 : errno != 0 ? errno : 254);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

bool can_write(const char* path) { return ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) >= 0; }
bool has_landlock() { return ::syscall(444, nullptr, 0, 1) >= 2; }

}  // namespace

TEST_CASE("import_sandbox_refuses_namespaces_and_mounts") {
  for (const int flags : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID})
    CHECK(errno_of([&] { return ::unshare(flags) == 0; }) == EPERM);
  CHECK(errno_of([] { return ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) >= 0; }) ==
        EPERM);
  CHECK(errno_of([] { return ::syscall(SYS_clone3, nullptr, 0) >= 0; }) == ENOSYS);
  CHECK(errno_of([] { return ::mount("none", "/tmp", "tmpfs", 0, nullptr) == 0; }) == EPERM);
  CHECK(errno_of([] { return ::syscall(SYS_fsopen, "tmpfs", 0) >= 0; }) == EPERM);
  CHECK(errno_of([] { return ::setns(-1, 0) == 0; }) == EPERM);
  CHECK(errno_of([] { return ::chroot("/tmp") == 0; }) == EPERM);
}

TEST_CASE("import_sandbox_refuses_access_to_other_processes") {
#ifndef SPC_SANITIZE
  CHECK(errno_of([] { return ::ptrace(PTRACE_SEIZE, ::getppid(), nullptr, nullptr) == 0; }) ==
        EPERM);
#endif
  CHECK(errno_of([] {
          return ::syscall(SYS_process_vm_readv, ::getppid(), nullptr, 0, nullptr, 0, 0) >= 0;
        }) == EPERM);
  CHECK(errno_of([] {
          return ::syscall(SYS_process_vm_writev, ::getppid(), nullptr, 0, nullptr, 0, 0) >= 0;
        }) == EPERM);
  CHECK(errno_of([] {
          return ::syscall(SYS_pidfd_getfd, ::syscall(SYS_pidfd_open, ::getppid(), 0), 0, 0) >= 0;
        }) == EPERM);
  for (const long call : {SYS_io_uring_setup, SYS_userfaultfd, SYS_bpf, SYS_perf_event_open,
                          SYS_keyctl, SYS_vmsplice})
    CHECK(errno_of([&] { return ::syscall(call, 0, 0, 0, 0, 0) >= 0; }) == EPERM);
}

#ifndef SPC_SANITIZE
TEST_CASE("import_sandbox_starts_nothing") {
  for (const char* program : {"/bin/sh", "/bin/true"}) {
    CHECK(errno_of([&] { return ::execl(program, program, nullptr) == 0; }) == EPERM);
  }
  CHECK(errno_of([] { return ::fork() >= 0; }) == EPERM);
}

TEST_CASE("import_sandbox_lets_a_starter_execute_its_program_only") {
  // /bin/true replaces the relay. The sandboxed process can send only descriptors.
  const auto starter = std::move(RelayStarter::create("/bin/true")).value();
  const auto broken = std::move(RelayStarter::create("/nonexistent")).value();
  const std::array<int, 6> descriptors{0, 0, 0, 0, 0, 0};
  CHECK(errno_of([&] {
          const auto relay = starter.start(descriptors);
          pollfd one{.fd = relay ? relay->get() : -1, .events = POLLIN, .revents = 0};
          return relay && ::poll(&one, 1, 10'000) == 1 &&
                 starter.start(descriptors);  // any number of times
        }) == 0);
  CHECK(errno_of([&] {
          const auto relay = broken.start(descriptors);
          errno = relay ? 0 : relay.error().sys_errno();
          return false;
        }) == ENOENT);
  CHECK_FALSE(broken.start(std::span(descriptors).first(1)));
}
#endif

TEST_CASE("import_sandbox_allows_threads") {
  CHECK(errno_of([] {
          bool ran = false;
          std::thread([&] { ran = true; }).join();
          return ran;
        }) == 0);
}

TEST_CASE("import_sandbox_allows_writing_in_its_stores_only") {
  CHECK(errno_of([] {
          return can_write("store/file") && can_write("shared/file") && can_write("/dev/null");
        }) == 0);
  CHECK(errno_of([] {
          return can_write("store/file") && ::rename("store/file", "shared/file") == 0;
        }) == 0);
  CHECK(errno_of([] { return ::open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0; }) == 0);
  if (!has_landlock()) return;
  CHECK(errno_of([] { return can_write("file"); }) == EACCES);
  if (::access("/dev/fuse", F_OK) == 0)
    CHECK(errno_of([] { return ::open("/dev/fuse", O_RDWR | O_CLOEXEC) >= 0; }) == EACCES);
  CHECK(errno_of([] { return ::open("/proc/self/mem", O_RDWR | O_CLOEXEC) >= 0; }) == EACCES);
}
