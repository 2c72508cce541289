#include "task/entering/stand_in.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/process/child.hpp"

namespace spc {
namespace {

/// Slurm sees what it would see of the task itself, but for a second core file.
[[noreturn]] void end_like(int status) {
  if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::signal(number, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigprocmask(SIG_SETMASK, &set, nullptr);
  ::kill(::getpid(), number);
  ::_exit(128 + number);
}

/// What the terminal sends its foreground processes reaches the task without us; a hang-up only the
/// session's leader.
bool is_for_the_task(const siginfo_t& signal) {
  return signal.si_code <= 0 || signal.si_signo == SIGHUP || signal.si_signo == SIGCONT;
}

[[noreturn]] void stand_in_for(pid_t child, const sigset_t& signals) {
  // An open pipe would keep srun waiting for more output. What slurmstepd had in memory is nobody's
  // business.
  ::syscall(SYS_close_range, 0U, ~0U, 0U);
  ::prctl(PR_SET_DUMPABLE, 0);
  for (;;) {
    siginfo_t signal{};
    if (::sigwaitinfo(&signals, &signal) < 0) continue;
    int status = 0;
    if (signal.si_signo != SIGCHLD) {
      if (is_for_the_task(signal)) ::kill(child, signal.si_signo);
    } else if (::waitpid(child, &status, WNOHANG) == child) {
      end_like(status);
    }
  }
}

/// Slurm signals the process that it knows, or all of its group: in a group of its own the task
/// hears of it once either way. A terminal, however, belongs to one group.
void leave_group() {
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) {
    ::setpgid(0, 0);
  } else {
    ::close(terminal);
  }
}

}  // namespace

Result<void> leave_stand_in() {
  // Blocked signals wait for the stand-in, also those that are ignored; and SIGCHLD ignored would
  // take the status away.
  sigset_t all;
  sigset_t before;
  struct sigaction on_child {};
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  ::sigaction(SIGCHLD, &default_action, &on_child);
  const pid_t child = fork_process();
  const int failed = errno;
  if (child > 0) stand_in_for(child, all);
  ::sigaction(SIGCHLD, &on_child, nullptr);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    leave_group();
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  // ENOMEM: the namespace's first process, which the agent keeps, is gone.
  if (child < 0) return Error::from_errno(failed, "enter the container: fork");
  return {};
}

}  // namespace spc
