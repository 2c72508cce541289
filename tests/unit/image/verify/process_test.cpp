// The program's exit status, messages and sandbox, and images of other tools.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "base/file.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/image/samples/verify_sample.hpp"
#include "verify/verify.hpp"

using namespace spc;
using namespace spc::test;

namespace {

struct Verdict {
  int status = -1;  ///< of the process; 128 + the signal's number if a signal ended it
  std::string reason;
};

int status_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Runs the program on the file of a descriptor. -1: it gets none.
Verdict verdict_on(int layer) {
  const auto reason = memory_file();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(reason.get(), 2);
    if (layer < 0) ::close(3);
    if (layer >= 0 && layer != 3) ::dup2(layer, 3);
    ::fcntl(3, F_SETFD, 0);
    ::execl(SPC_LAYER_VERIFIER, "layer-verifier", nullptr);
    ::_exit(99);
  }
  const int status = status_of(pid);
  return {.status = status, .reason = contents(reason.get())};
}

/// Returns how a child ends that enters the sandbox and then does `forbidden`, 0 if it continues.
template <typename Action>
int end_of(Action forbidden) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!verify::confine(3, 0)) ::_exit(99);
    forbidden();
    ::_exit(0);
  }
  return status_of(pid);
}

constexpr int kKilled = 128 + SIGSYS;

}  // namespace

TEST_CASE("verifier_accepts_converted_layer_silently") {
  const auto verdict = verdict_on(memory_file(sample_image()).get());
  CHECK(verdict.status == 0);
  CHECK(verdict.reason.empty());
}

TEST_CASE("verifier_accepts_erofs_layer_in_sandbox") {
  ErofsTree tree = erofs_sample();
  for (unsigned i = 0; i < 20'000; ++i) tree.file("file-" + std::to_string(i), "content");
  const auto verdict = verdict_on(memory_file(tree.image().bytes).get());
  CHECK(verdict.status == 0);
  CHECK(verdict.reason.empty());
  auto image = erofs_sample(false).image();
  const auto refused =
      verdict_on(memory_file(image.set(1280 + 24, std::uint32_t{1}).seal().bytes).get());
  CHECK(refused.status == 1);
  CHECK(refused.reason == "layer-verifier: inode 40: its owner is not 0\n");
}

TEST_CASE("verifier_refuses_other_image_with_status_1") {
  auto image = sample_image();
  put(image, kMinor, std::uint16_t{1});
  const auto verdict = verdict_on(memory_file(image).get());
  CHECK(verdict.status == 1);
  CHECK(verdict.reason == "layer-verifier: super block: the version is not 4.0\n");
  CHECK(verdict_on(memory_file().get()).status == 1);
}

TEST_CASE("verifier_without_readable_file_has_status_2") {
  CHECK(verdict_on(-1).status == 2);
  const UniqueFd null(::open("/dev/null", O_RDONLY));
  CHECK(verdict_on(null.get()).status == 2);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  CHECK(verdict_on(reading.get()).status == 2);
}

TEST_CASE("verifier_refuses_mksquashfs_images") {
  char directory[] = "/tmp/verify-test-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::string root(directory);
  std::ofstream(root + "/file") << "content";
  std::ofstream(root + "/big") << noise(200'000);
  unsigned made = 0;
  for (const char* options :
       {"-comp zstd -Xcompression-level 1",
        "-comp zstd -Xcompression-level 1 -no-exports -all-root -all-time 0 -mkfs-time 0",
        "-comp gzip", "-no-fragments -no-xattrs"}) {
    const std::string command = "mksquashfs " + root + " " + root +
                                ".sqsh -noappend -quiet -no-progress " + options +
                                " >/dev/null 2>&1";
    const int rc = std::system(command.c_str());
    if (rc != 0) continue;
    ++made;
    const UniqueFd image(::open((root + ".sqsh").c_str(), O_RDONLY));
    CHECK_FALSE(refusal(contents(image.get())).empty());
  }
  for (const char* name : {"/file", "/big", ".sqsh", ""}) std::remove((root + name).c_str());
  CHECK((made > 0 || std::getenv("SPC_TESTS_MUST_RUN") == nullptr));
}

TEST_CASE("verifier_sandbox_allows_reading") {
  CHECK(end_of([] {
          std::string memory(10'000'000, 'x');
          (void)memory;
        }) == 0);
}

TEST_CASE("verifier_sandbox_kills_on_other_calls") {
  const auto file = memory_file("x");
  CHECK(end_of([] { ::open("/etc/passwd", O_RDONLY); }) == kKilled);
  CHECK(end_of([] { (void)::socket(AF_INET, SOCK_STREAM, 0); }) == kKilled);
  CHECK(end_of([] { ::execl("/bin/true", "true", nullptr); }) == kKilled);
  CHECK(end_of([] { (void)::fork(); }) == kKilled);
  CHECK(end_of([] { ::syscall(SYS_clone3, nullptr, 0); }) == kKilled);
  CHECK(end_of([] { ::kill(1, SIGTERM); }) == kKilled);
  CHECK(end_of([] { ::syscall(SYS_ptrace, 0, 0, 0, 0); }) == kKilled);
  CHECK(end_of([] { ::prctl(PR_SET_DUMPABLE, 1); }) == kKilled);
  CHECK(end_of([] { ::unlink("/nonexistent"); }) == kKilled);
  CHECK(end_of([] {
          ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }) == kKilled);
  CHECK(end_of([&] { ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), 0); }) == kKilled);
  char byte = 0;
  CHECK(end_of([&] { (void)!::pwrite(3, &byte, 1, 0); }) == kKilled);
  CHECK(end_of([&] { (void)!::write(1, &byte, 1); }) == kKilled);
  CHECK(end_of([&] { (void)!::read(0, &byte, 1); }) == kKilled);
  CHECK(end_of([&] { (void)!::pread(0, &byte, 1, 0); }) == kKilled);
}
