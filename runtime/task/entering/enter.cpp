#include "task/entering/enter.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/capability.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/process/child.hpp"

namespace spc {

// --- stand in ---

namespace {

/// Ends this process with the task's exit status or signal, as Slurm would see it, without a second
/// core file.
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

/// Returns whether the signal has to be passed to the task. The terminal's signals to its
/// foreground processes reach the task directly; a hang-up reaches only the session's leader.
bool is_for_the_task(const siginfo_t& signal) {
  return signal.si_code <= 0 || signal.si_signo == SIGHUP || signal.si_signo == SIGCONT;
}

[[noreturn]] void stand_in_for(pid_t child, const sigset_t& signals) {
  // An open pipe would keep srun waiting for more output. Memory inherited from slurmstepd must not
  // be readable.
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

/// Leaves the process group if possible. Slurm signals the process that it knows, or all of its
/// group: with a group of its own the task receives each signal once in both cases. A terminal,
/// however, belongs to one group.
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
  // Block all signals for the stand-in, including ignored ones. An ignored SIGCHLD would discard
  // the exit status.
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
  // ENOMEM: the namespace's init process, which the agent keeps, has ended.
  if (child < 0) return Error::from_errno(failed, "enter the container: fork");
  return {};
}

// --- enter ---

namespace {

using Capabilities = std::vector<cap_value_t>;

/// Reduces the permitted capabilities to `kept`, with only `raised` in effect.
Result<void> set_capabilities(const Capabilities& kept, const Capabilities& raised) {
  cap_t now = ::cap_get_proc();
  cap_t next = ::cap_init();
  for (const cap_value_t capability : kept) {
    cap_flag_value_t permitted = CAP_CLEAR;
    ::cap_get_flag(now, capability, CAP_PERMITTED, &permitted);
    ::cap_set_flag(next, CAP_PERMITTED, 1, &capability, permitted);
  }
  if (!raised.empty())
    ::cap_set_flag(next, CAP_EFFECTIVE, static_cast<int>(raised.size()), raised.data(), CAP_SET);
  const int failed = ::cap_set_proc(next) != 0 ? errno : 0;
  ::cap_free(now);
  ::cap_free(next);
  if (failed != 0) return Error::from_errno(failed, "change the capabilities");
  return {};
}

/// Returns the capabilities for entering. NET_ADMIN: a new network namespace has no loopback
/// interface yet.
Capabilities to_enter() { return {CAP_SYS_ADMIN, CAP_SYS_CHROOT, CAP_NET_ADMIN}; }

/// Returns the capabilities of root's job, which may name files that root can read.
Capabilities of_root() {
  return ::geteuid() == 0 ? Capabilities{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH} : Capabilities{};
}

Capabilities with(Capabilities some, const Capabilities& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

/// Brings up 127.0.0.1 in the network namespace of this process. Returns false with errno on
/// failure.
bool start_loopback() {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::memcpy(request.ifr_name, "lo", sizeof "lo");
  if (!socket || ::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return false;
  if ((request.ifr_flags & IFF_UP) != 0) return true;  // another task has done it
  request.ifr_flags |= IFF_UP;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

/// Sets no_new_privs: the process cannot gain capabilities that it does not have.
Result<void> forgo_privilege() {
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error::from_errno(errno, "set no_new_privs");
  return {};
}

}  // namespace

bool ContainerNamespaces::has(NamespaceBits bit) const {
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (kNamespaceKinds[i].bit == bit) return bool(own[i]);
  }
  return false;
}

Result<ContainerNamespaces> ContainerNamespaces::take(std::vector<UniqueFd>& passed,
                                                      std::uint32_t bits, std::size_t first) {
  ContainerNamespaces namespaces;
  namespaces.mounts = std::move(passed.at(0));
  namespaces.makes_cgroup = (bits & own_cgroup) != 0;
  for (std::size_t i = 0; i < kNamespaceKinds.size(); ++i) {
    if ((bits & kNamespaceKinds[i].bit & ~std::uint32_t{own_cgroup}) == 0) continue;
    if (first == passed.size())
      return Error(ErrorKind::internal, "enter the container: a namespace is missing");
    namespaces.own[i] = std::move(passed[first++]);
  }
  return namespaces;
}

Result<void> keep_nothing_else() {
  return set_capabilities(with(to_enter(), of_root()), of_root());
}

Result<void> keep_only_chroot() {
  SPC_TRY(set_capabilities(with({CAP_SYS_CHROOT}, of_root()), of_root()));
  return forgo_privilege();
}

Result<void> stay_outside() {
  SPC_TRY(set_capabilities({}, {}));  // clears the ambient ones as well
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  return {};
}

Result<void> give_up_privilege() {
  SPC_TRY(stay_outside());
  return forgo_privilege();
}

Result<void> enter_container(const ContainerNamespaces& namespaces) {
  const UniqueFd& user = namespaces.own[0];
  const bool network = namespaces.has(own_net);
  auto raised = set_capabilities(
      to_enter(), network ? to_enter() : Capabilities{CAP_SYS_ADMIN, CAP_SYS_CHROOT});
  bool entered = raised.has_value();
  for (std::size_t i = 1; entered && i < namespaces.own.size(); ++i) {
    entered = !namespaces.own[i] || ::setns(namespaces.own[i].get(), kNamespaceKinds[i].flag) == 0;
  }
  entered = entered && (!network || start_loopback());
  // Entering the user namespace drops all capabilities outside of it. The mount namespace belongs
  // to it.
  entered = entered && (!user || ::setns(user.get(), CLONE_NEWUSER) == 0);
  entered = entered && ::setns(namespaces.mounts.get(), CLONE_NEWNS) == 0;
  // Slurm has put the task in its cgroup, which becomes the namespace's root. The user namespace,
  // if there is one, owns the cgroup namespace.
  entered = entered && (!namespaces.makes_cgroup || ::unshare(CLONE_NEWCGROUP) == 0);
  const int failed = entered ? 0 : errno;
  SPC_TRY(entered && user ? forgo_privilege() : give_up_privilege());
  if (!raised) return std::move(raised).error().during("enter the container");
  if (failed != 0) return Error::from_errno(failed, "enter the container");
  return namespaces.has(own_pid) ? leave_stand_in() : Result<void>();
}

Result<void> enter_root(int root) {
  auto raised = set_capabilities({CAP_SYS_CHROOT}, {CAP_SYS_CHROOT});
  const bool entered = raised && ::fchdir(root) == 0 && ::chroot(".") == 0;
  const int failed = entered ? 0 : errno;
  SPC_TRY(give_up_privilege());
  if (!raised) return std::move(raised).error().during("enter the container");
  if (failed != 0) return Error::from_errno(failed, "enter the container");
  return {};
}

}  // namespace spc
