#include "image/layer/layer_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "base/file.hpp"

namespace spc {
namespace {

constexpr int kPipeBytes = 1 << 20;

struct Pipe {
  UniqueFd read_end, write_end;
};

/// Both ends are above the descriptors that the child gets, so that none is overwritten before it is used.
Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
  const UniqueFd low_read(ends[0]);
  const UniqueFd low_write(ends[1]);
  Pipe pipe{UniqueFd(::fcntl(ends[0], F_DUPFD_CLOEXEC, kLayerReport + 1)),
            UniqueFd(::fcntl(ends[1], F_DUPFD_CLOEXEC, kLayerReport + 1))};
  if (!pipe.read_end || !pipe.write_end) return Error::from_errno(errno, "make a pipe");
  return pipe;
}

std::string find_program() {
  std::array<char, PATH_MAX> self{};
  const ssize_t size = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (size > 0) {
    std::string path(self.data(), static_cast<std::size_t>(size));
    path.resize(path.rfind('/') + 1);
    path += "layer-writer";
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return SPC_LIBEXECDIR "/layer-writer";
}

/// The child: only system calls until exec. If it fails, the report pipe takes errno instead of a report.
[[noreturn]] void run_child(const char* program, char* const* arguments, int input, int output, int report,
                            pid_t parent) noexcept {
  static char* const kNoEnvironment[] = {nullptr};
  sigset_t none;
  ::sigemptyset(&none);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(input, kLayerInput) >= 0 && ::dup2(output, kLayerOutput) >= 0 && ::dup2(report, kLayerReport) >= 0 &&
      ::syscall(SYS_close_range, kLayerReport + 1, ~0U, 0) == 0) {
    ::execve(program, arguments, kNoEnvironment);
  }
  const int err = errno;
  (void)!::write(kLayerReport, &err, sizeof err);
  ::_exit(127);
}

Error died(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    std::string why = "layer-writer was killed by signal " + std::to_string(signal);
    if (const char* name = ::sigdescr_np(signal)) why += std::string(" (") + name + ")";
    if (signal == SIGSYS) return Error(ErrorKind::refused, why + ": system call forbidden by its sandbox");
    Error error(ErrorKind::system, why);
    if (signal == SIGKILL) return std::move(error).hint("perhaps out of memory: increase --mem");
    return error;
  }
  return Error(ErrorKind::internal, "layer-writer exited with status " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace

Result<LayerProcess> LayerProcess::start(int output_file, const LayerLimits& limits, const std::string& program) {
  const std::string path = program.empty() ? find_program() : program;
  std::array<std::string, 5> words{"layer-writer", std::to_string(limits.tar_bytes), std::to_string(limits.image_bytes),
                                   std::to_string(limits.entries), std::to_string(limits.workers)};
  std::array<char*, words.size() + 1> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();

  auto input = SPC_TRY(make_pipe());
  auto report = SPC_TRY(make_pipe());
  const UniqueFd output(::fcntl(output_file, F_DUPFD_CLOEXEC, kLayerReport + 1));
  if (!output) return Error::from_errno(errno, "pass the layer's file");
  (void)::fcntl(input.write_end.get(), F_SETPIPE_SZ, kPipeBytes);  // beyond the user's quota it stays 64 KiB

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Error::from_errno(errno, "start layer-writer");
  if (pid == 0) {
    run_child(path.c_str(), arguments.data(), input.read_end.get(), output.get(), report.write_end.get(), parent);
  }
  return LayerProcess(pid, std::move(input.write_end), std::move(report.read_end));
}

LayerProcess& LayerProcess::operator=(LayerProcess&& other) noexcept {
  if (this != &other) {
    kill();
    child_ = std::move(other.child_);
    input_ = std::move(other.input_);
    report_ = std::move(other.report_);
  }
  return *this;
}

int LayerProcess::wait() noexcept {
  int status = 0;
  while (::waitpid(child_.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child_.pid = -1;
  return status;
}

void LayerProcess::kill() noexcept {
  if (child_.pid < 0) return;
  ::kill(child_.pid, SIGKILL);
  wait();
}

Result<ConvertedLayer> LayerProcess::finish() {
  close_input();
  LayerReport report;
  std::size_t got = 0;
  while (got < sizeof report) {
    const ssize_t count = ::read(report_.get(), reinterpret_cast<char*>(&report) + got, sizeof report - got);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  if (got == sizeof report && std::memcmp(report.magic, LayerReport::kMagic, sizeof report.magic) != 0) {
    kill();
    return Error(ErrorKind::internal, "layer-writer sent an invalid report");
  }
  const int status = wait();
  if (got == sizeof(int)) {
    int err = 0;
    std::memcpy(&err, &report, sizeof err);
    return Error::from_errno(err, "execute \"layer-writer\"");
  }
  if (got != sizeof report) return died(status);
  if (report.error.is_set()) return report.error.error();
  if (status != 0) return died(status);
  return report.layer;
}

}  // namespace spc
