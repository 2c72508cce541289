#include "base/process/child.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace spc {

namespace {

constexpr std::size_t kStack = 64 << 10;
constexpr int kHigh = 32;  // above the numbers that passed descriptors get

std::vector<char*> as_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// All data that the child needs, allocated before the child is created.
struct Plan {
  const Program& program;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  // for copies of the passed descriptors and of /dev/null; the child fills it
  std::vector<int> high;
  pid_t parent = ::getpid();
  int failed = 0;
};

void set_default_signals() {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
}

/// Moves the passed descriptors above the numbers that they get, so that none is overwritten before
/// it is used.
bool arrange_descriptors(Plan& plan) {
  const auto& passed = plan.program.descriptors;
  for (std::size_t i = 0; i < passed.size(); ++i) {
    plan.high[i] = ::fcntl(passed[i].ours, F_DUPFD_CLOEXEC, kHigh);
    if (plan.high[i] < 0) return false;
  }
  const int opened = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int null = ::fcntl(opened, F_DUPFD_CLOEXEC, kHigh);
  if (null < 0) return false;
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  for (std::size_t i = 0; i < passed.size(); ++i) {
    if (::dup2(plan.high[i], passed[i].theirs) < 0) return false;
  }
  return true;
}

/// Runs in the child: calls `prepare` and makes system calls only. Returns the errno if the program
/// is not executed. The stack is never unwound, so a sanitizer's marks on it would stay in the
/// parent's memory.
[[gnu::no_sanitize_address]] int become(Plan& plan) noexcept {
  const Program& program = plan.program;
  if (program.death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, program.death_signal);
    if (::getppid() != plan.parent) return ESRCH;
  }
  if (program.group == Program::Group::own) ::setpgid(0, 0);
  if (program.group == Program::Group::session) ::setsid();
  if (program.signals == Program::Signals::defaults) set_default_signals();
  sigset_t none;
  ::sigemptyset(&none);
  errno = 0;
  if (program.prepare && !program.prepare()) return errno != 0 ? errno : EPERM;
  // kHigh is beyond the limit
  if (!arrange_descriptors(plan)) return errno == EINVAL ? EMFILE : errno;
  if (program.umask) ::umask(*program.umask);
  if (program.directory != nullptr && ::chdir(program.directory) != 0) return errno;
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (program.executed >= 0) {
    ::syscall(SYS_execveat, program.executed, "", plan.arguments.data(), plan.environment.data(),
              AT_EMPTY_PATH);
  } else {
    ::execve(program.path.c_str(), plan.arguments.data(), plan.environment.data());
  }
  return errno;
}

/// Blocks all signals: no signal handler of this process may run in a child that shares its memory,
/// nor before the child's own mask is set.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// Creates the child. fork() makes memory usable in the child of a threaded process; only clone(2)
/// can create a sibling.
pid_t copy_process(ChildOf parent) {
  if (parent == ChildOf::us) return ::fork();
  return static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

pid_t start_in_our_memory(Plan& plan) {
  void* const stack = ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return -1;
  const auto body = [](void* given) {
    auto& its_plan = *static_cast<Plan*>(given);
    its_plan.failed = become(its_plan);
    return 127;
  };
  const BlockedSignals blocked;
  const pid_t pid =
      ::clone(body, static_cast<char*>(stack) + kStack, CLONE_VM | CLONE_VFORK | SIGCHLD, &plan);
  const int err = errno;
  ::munmap(stack, kStack);
  errno = err;
  return pid;
}

pid_t start_in_a_copy(Plan& plan) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  UniqueFd report(ends[0]);
  UniqueFd theirs(ends[1]);
  pid_t pid = -1;
  {
    const BlockedSignals blocked;
    pid = copy_process(plan.program.parent);
    if (pid == 0) {
      theirs = UniqueFd(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, kHigh));
      const int failed = become(plan);
      [[maybe_unused]] const auto written = ::write(theirs.get(), &failed, sizeof failed);
      ::_exit(127);
    }
  }
  if (pid < 0) return -1;
  theirs.reset();
  while (::read(report.get(), &plan.failed, sizeof plan.failed) < 0 && errno == EINTR) {
  }
  return pid;
}

}  // namespace

Child::Child(pid_t pid, bool has_group)
    : pid_(pid),
      has_group_(has_group),
      watch_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U))) {}

Result<Child> Child::start(const Program& program) {
  const std::string what = "execute " + in_quotes(program.path);
  Plan plan{.program = program,
            .arguments = as_pointers(program.arguments),
            .environment = {},
            .high = {}};
  plan.high.resize(program.descriptors.size());
  if (program.environment) {
    plan.environment = as_pointers(*program.environment);
  } else {
    for (char** variable = environ; *variable != nullptr; ++variable)
      plan.environment.push_back(*variable);
    plan.environment.push_back(nullptr);
  }
  const bool is_copied = program.prepare || program.parent == ChildOf::our_parent;
  const pid_t pid = is_copied ? start_in_a_copy(plan) : start_in_our_memory(plan);
  if (pid < 0) return Error::from_errno(errno, what);
  Child child(pid, program.group != Program::Group::ours);
  const int unwatched = child.watch_ ? 0 : errno;
  if (program.parent == ChildOf::our_parent) child.release();
  if (plan.failed != 0) return Error::from_errno(plan.failed, what);
  if (unwatched != 0) return Error::from_errno(unwatched, "watch " + in_quotes(program.path));
  return child;
}

Result<Child> Child::run(const std::function<int()>& work, std::string_view what, int death_signal,
                         ChildOf parent) {
  const pid_t us = ::getpid();
  const pid_t pid = copy_process(parent);
  if (pid < 0) return Error::from_errno(errno, std::string(what) + ": fork");
  if (pid == 0) {
    if (death_signal != 0) {
      ::prctl(PR_SET_PDEATHSIG, death_signal);
      // 0: the child is in a PID namespace that the caller has joined
      const pid_t now = ::getppid();
      if (now != us && now != 0) ::_exit(1);
    }
    ::_exit(work());
  }
  Child child(pid, false);
  if (parent == ChildOf::our_parent) child.release();
  return child;
}

ExitStatus Child::wait() {
  int status = 0;
  while (pid_ > 0 && ::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return ExitStatus(status);
}

std::optional<ExitStatus> Child::try_wait() {
  int status = 0;
  if (pid_ <= 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  return ExitStatus(status);
}

void Child::kill() {
  if (pid_ <= 0) return;
  // Kill the group first, while the process's number still denotes it.
  if (has_group_) ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  wait();
}

pid_t fork_process() { return copy_process(ChildOf::us); }

Result<std::string> find_program(const std::string& name, std::string_view path) {
  if (name.find('/') != std::string::npos) return name;
  for (std::string_view rest = path; !rest.empty();) {
    const std::string directory(rest.substr(0, rest.find(':')));
    rest.remove_prefix(std::min(directory.size() + 1, rest.size()));
    std::string candidate = directory + "/" + name;
    if (directory.starts_with('/') && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return Error(ErrorKind::not_found, "run " + in_quotes(name) + ": not found in PATH");
}

}  // namespace spc
