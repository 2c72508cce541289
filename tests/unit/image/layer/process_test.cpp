// The layer process: input, output, death and sandbox.

#include "image/pull/layer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "base/file.hpp"
#include "convert/converter.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/samples/layer_image.hpp"
#include "unit/image/samples/layer_tar.hpp"

using namespace spc;
using namespace spc::test;

namespace {

LayerProcess start(int output, const LayerLimits& limits = {}) {
  ::signal(SIGPIPE, SIG_IGN);
  auto process = LayerProcess::start(output, limits, SPC_LAYER_WRITER);
  REQUIRE(process);
  return std::move(*process);
}

/// Returns the signal that ended a child which entered the sandbox and then did `forbidden`, 0 if
/// none.
template <typename Action>
int signal_of(Action forbidden) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!enter_layer_sandbox(1 << 20, RLIM_INFINITY, RLIM_INFINITY)) ::_exit(99);
    forbidden();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

pid_t only_child() {
  std::ifstream children("/proc/thread-self/children");
  pid_t pid = -1;
  children >> pid;
  return pid;
}

}  // namespace

TEST_CASE("layer_process_converts_a_layer") {
  const auto output = memory_file();
  auto process = start(output.get());
  const std::string tar = Tar().file("f", std::string(3'000'000, 'x')).end();
  REQUIRE(write_all(process.input(), gzip(tar)));
  process.close_input();
  pollfd done{.fd = process.result_descriptor(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&done, 1, 20000) == 1);
  const auto layer = process.finish();
  REQUIRE(layer);
  CHECK(layer->tar_bytes == tar.size());
  CHECK(contents(output.get()) == contents(convert(tar).file.get()));
}

TEST_CASE("layer_process_converts_while_output_is_flushed") {
  const std::string data = noise(20 << 20);
  const auto output = memory_file();
  auto process = start(output.get());
  REQUIRE(write_all(process.input(), Tar().file("f", data).end()));
  CHECK(process.finish());
}

TEST_CASE("layer_process_reports_refusal") {
  const auto output = memory_file();
  auto process = start(output.get());
  REQUIRE(write_all(process.input(), Tar().file("../up").end()));
  const auto layer = process.finish();
  REQUIRE_FALSE(layer);
  CHECK(layer.error().kind() == ErrorKind::refused);
  CHECK(layer.error().message() == "entry \"../up\": the path leaves the image's root");
}

// outcome 82 refused: bombs
TEST_CASE("layer_process_limits_unpacked_bytes_and_image_size") {
  const auto output = memory_file();
  auto small_tar = start(output.get(), {.tar_bytes = 10'000});
  (void)write_all(small_tar.input(), gzip(Tar().file("f", std::string(1 << 20, 'x')).end()));
  CHECK(small_tar.finish().error().message().find("more than 10000 bytes") != std::string::npos);

  const std::string data = noise(1 << 20);
  char name[] = "/tmp/layer-test-XXXXXX";  // RLIMIT_FSIZE does not apply to memory files
  const UniqueFd file(::mkstemp(name));
  ::unlink(name);
  auto small_image = start(file.get(), {.image_bytes = 300'000});
  (void)write_all(small_image.input(), Tar().file("f", data).end());
  const auto layer = small_image.finish();
  REQUIRE_FALSE(layer);
  CHECK(layer.error().message().find("file too large") != std::string::npos);
}

TEST_CASE("layer_process_killed_is_reported") {
  const auto output = memory_file();
  auto process = start(output.get());
  REQUIRE(write_all(process.input(), Tar().file("f").without_end()));
  const pid_t pid = only_child();
  REQUIRE(pid > 0);
  ::kill(pid, SIGKILL);
  const auto layer = process.finish();
  REQUIRE_FALSE(layer);
  CHECK(layer.error().message().find("killed by signal 9") != std::string::npos);
}

TEST_CASE("layer_process_killed_by_filter_does_not_blame_image") {
  const auto output = memory_file();
  auto process = start(output.get());
  const pid_t pid = only_child();
  REQUIRE(pid > 0);
  ::kill(pid, SIGSYS);
  const auto layer = process.finish();
  REQUIRE_FALSE(layer);
  CHECK(layer.error().kind() ==
        ErrorKind::internal);  // LayerPull blames the image for corrupt, invalid and refused
  CHECK(layer.error().message().find("forbidden by its sandbox") != std::string::npos);
}

TEST_CASE("layer_process_at_cpu_limit_is_reported") {
  const auto output = memory_file();
  auto process = start(output.get());
  const pid_t pid = only_child();
  REQUIRE(pid > 0);
  ::kill(pid, SIGXCPU);
  CHECK(process.finish().error().message().find("limit of processor time") != std::string::npos);
}

TEST_CASE("layer_process_accepts_4096_attributes_of_a_file") {
  for (const unsigned count :
       {128U, 1000U, 4096U}) {  // from 128 on, libsquashfs's qsort reads the machine's memory size
    std::string records;
    for (unsigned i = 0; i < count; ++i)
      records += record("SCHILY.xattr.user.n" + std::to_string(i), std::to_string(i));
    const std::string tar = Tar().pax(records).file("f").end();
    for (const auto format : {LayerFormat::squashfs, LayerFormat::erofs}) {
      const auto output = memory_file();
      auto process =
          start(output.get(), {.compression = format == LayerFormat::erofs ? LayerCompression::lz4
                                                                           : LayerCompression::zstd,
                               .format = format});
      REQUIRE(write_all(process.input(), tar));
      const auto layer = process.finish();
      CHECK((layer ? std::string() : layer.error().message()) == "");
    }
  }
}

TEST_CASE("layer_process_that_gave_up_fails_writes_with_epipe") {
  const auto output = memory_file();
  auto process = start(output.get());
  const std::string zeros(1 << 20, 'z');
  Result<void> fed;
  for (int i = 0; i < 100 && fed; ++i) fed = write_all(process.input(), zeros);
  REQUIRE_FALSE(fed);
  CHECK(fed.error().sys_errno() == EPIPE);
  CHECK(process.finish().error().message().find("not a tar archive") != std::string::npos);
}

TEST_CASE("layer_process_dropped_is_killed") {
  pid_t pid = -1;
  {
    const auto output = memory_file();
    const auto process = start(output.get());
    pid = only_child();
    REQUIRE(pid > 0);
  }
  CHECK(::kill(pid, 0) == -1);
}

// outcome 151 refused: no descriptors, no memory
//     untested: limits of descriptors and memory for import and layer-writer
TEST_CASE("layer_process_missing_program_is_reported") {
  const auto output = memory_file();
  const auto process = LayerProcess::start(output.get(), {}, "/nonexistent/layer-writer");
  REQUIRE_FALSE(process);
  CHECK(process.error().message() ==
        "execute \"/nonexistent/layer-writer\": no such file or directory");
}

TEST_CASE("layer_process_has_three_descriptors") {
  const auto output = memory_file();
  const UniqueFd leaked(::open("/dev/null", O_RDONLY));  // not close-on-exec
  auto process = start(output.get());
  const pid_t pid = only_child();
  // The descriptors are final when the program runs. Until then /proc/PID/exe is this test.
  char exe[512];
  ssize_t size = 0;
  do {
    size = ::readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), exe, sizeof exe);
  } while (size > 0 && std::string(exe, static_cast<std::size_t>(size)).find("layer-writer") ==
                           std::string::npos);
  // The dynamic linker opens files briefly. Inherited descriptors stay open.
  const std::string fifth = "/proc/" + std::to_string(pid) + "/fd/5";
  for (int i = 0; i < 400 && ::access(fifth.c_str(), F_OK) == 0; ++i) ::usleep(5000);
  CHECK(::access(fifth.c_str(), F_OK) != 0);
  REQUIRE(write_all(process.input(), Tar().file("f").end()));
  CHECK(process.finish());
}

TEST_CASE("layer_process_starts_on_busy_processor") {
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);  // child processes inherit it
  std::atomic<bool> stop = false;
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i)
    busy.emplace_back([&] {
      while (!stop) {
      }
    });
  int failed = 0;
  const std::string tar = Tar().file("f").end();
  for (int i = 0; i < 40; ++i) {
    const auto output = memory_file();
    auto process = start(output.get());
    (void)write_all(process.input(), tar);
    if (!process.finish()) ++failed;
  }
  stop = true;
  for (auto& thread : busy) thread.join();
  CHECK(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(failed == 0);
}

TEST_CASE("layer_sandbox_allows_computing_memory_and_descriptors") {
  CHECK(signal_of([] {
          const auto memory =
              ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          if (memory == MAP_FAILED) ::abort();
          char byte = 0;
          (void)!::read(-1, &byte, 1);
        }) == 0);
}

TEST_CASE("layer_sandbox_allows_queries_of_libraries") {
  CHECK(signal_of([] {
          std::vector<std::uint64_t> many(100'000);
          for (std::size_t i = 0; i < many.size(); ++i) many[i] = i * 7919 % many.size();
          std::qsort(many.data(), many.size(), sizeof many[0], [](const void* a, const void* b) {
            return std::memcmp(b, a, sizeof many[0]);
          });
          (void)::sysconf(_SC_PHYS_PAGES);
          if (::syscall(SYS_sched_getaffinity, 0, 0, nullptr) != -1 || errno != ENOSYS) ::abort();
          rlimit none{};
          if (::setrlimit(RLIMIT_CORE, &none) != -1 || errno != ENOSYS) ::abort();
          if (::prctl(PR_GET_DUMPABLE) != 0 || ::getuid() != ::geteuid()) ::abort();
        }) == 0);
}

TEST_CASE("layer_sandbox_kills_on_other_calls") {
  CHECK(signal_of([] { ::open("/etc/passwd", O_RDONLY); }) == SIGSYS);
  CHECK(signal_of([] { ::syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", nullptr, 0); }) == SIGSYS);
  CHECK(signal_of([] { ::socket(AF_UNIX, SOCK_STREAM, 0); }) == SIGSYS);
  CHECK(signal_of([] { ::execl("/bin/true", "true", nullptr); }) == SIGSYS);
  CHECK(signal_of([] { (void)::fork(); }) == SIGSYS);
  CHECK(signal_of([] { ::syscall(SYS_clone3, nullptr, 0); }) == SIGSYS);
  CHECK(signal_of([] { ::kill(1, SIGTERM); }) == SIGSYS);
  CHECK(signal_of([] { ::syscall(SYS_tgkill, 1, 1, SIGTERM); }) == SIGSYS);
  CHECK(signal_of([] { ::syscall(SYS_ptrace, 0, 0, 0, 0); }) == SIGSYS);
  CHECK(signal_of([] { ::process_vm_readv(1, nullptr, 0, nullptr, 0, 0); }) == SIGSYS);
  CHECK(signal_of([] { ::prctl(PR_SET_DUMPABLE, 1); }) == SIGSYS);
  CHECK(signal_of([] { (void)!::dup(0); }) == SIGSYS);
  CHECK(signal_of([] { ::unlink("/nonexistent"); }) == SIGSYS);
  CHECK(signal_of([] {
          ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }) == SIGSYS);
  CHECK(signal_of([] { ::syscall(SYS_io_uring_setup, 1, nullptr); }) == SIGSYS);
  const auto file = memory_file();
  CHECK(signal_of([&] {
          ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        }) == SIGSYS);
  CHECK(signal_of([] { ::sendmsg(0, nullptr, 0); }) == SIGSYS);
}

TEST_CASE("layer_sandbox_covers_existing_threads") {
  CHECK(signal_of([] {}) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::atomic<int> step = 0;
    std::thread other([&] {
      step = 1;
      while (step != 2) {
      }
      ::open("/etc/passwd", O_RDONLY);
      step = 3;
    });
    while (step != 1) {
    }
    if (!enter_layer_sandbox(1 << 20, RLIM_INFINITY, RLIM_INFINITY)) ::_exit(99);
    step = 2;
    while (step != 3) {
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS));
}
