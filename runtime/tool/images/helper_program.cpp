#include "tool/images/helper_program.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace spc {
namespace {

constexpr int kFirst = 3;

/// In the child only: system calls until exec.
[[noreturn]] void execute(const char* path, char* const* arguments, char* const* environment, const std::vector<int>& high) {
  // A server that lived in our mount namespace would keep the mount alive that it serves, and so itself, when we are killed.
  // Outside a user namespace of our own this is not allowed, and not needed.
  ::unshare(CLONE_NEWNS);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, 0);
  ::dup2(null, 1);
  int next = kFirst;
  for (const int descriptor : high) ::dup2(descriptor, next++);
  ::syscall(SYS_close_range, next, ~0U, 0U);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(path, arguments, environment);
  ::_exit(127);
}

}  // namespace

Result<HelperProgram> HelperProgram::start(const std::string& path, const std::vector<std::string>& arguments,
                                           const std::vector<int>& descriptors, Environment environment) {
  if (::access(path.c_str(), X_OK) != 0) {
    return Error::from_errno(errno, "start " + in_quotes(path)).hint("spank-container is not installed completely");
  }
  // Moved above the numbers that they will get, so that none is overwritten before it is used.
  std::vector<UniqueFd> owned;
  std::vector<int> high;
  for (const int descriptor : descriptors) {
    owned.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 40));
    if (!owned.back()) return Error::from_errno(errno, "pass a descriptor to " + in_quotes(path));
    high.push_back(owned.back().get());
  }
  std::vector<char*> words{const_cast<char*>(path.c_str())};
  for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  char* const nothing[] = {nullptr};
  const pid_t pid = ::fork();
  if (pid < 0) return Error::from_errno(errno, "start " + in_quotes(path));
  if (pid == 0) execute(path.c_str(), words.data(), environment == Environment::ours ? environ : nothing, high);
  HelperProgram program;
  program.pid_ = pid;
  program.watch_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  if (!program.watch_) return Error::from_errno(errno, "watch " + in_quotes(path));
  return program;
}

int HelperProgram::wait() {
  int status = 0;
  while (pid_ > 0 && ::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void HelperProgram::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

}  // namespace spc
