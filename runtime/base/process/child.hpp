#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- child ---

/// The only code that starts processes, except for those that slurmstepd and the agent start as
/// root (agent/privilege, task/step_agent). Between clone and exec those make only system calls
/// that can be reviewed on one page.
///
///   auto child = SPC_TRY(Child::start(
///       {.path = "/usr/bin/x", .arguments = {"x", "--all"}, .descriptors = {{file, 1}}}));
///   if (child.wait().code() != 0) ...
///
/// Starting fails, with the errno, if the program cannot be executed. The program begins with an
/// empty signal mask. Descriptors that are not passed are closed, and 0 to 2 are on /dev/null.

/// Parent of the new process: the calling process (`us`) or its parent. Only the parent of a
/// process can wait for it.
enum class ChildOf { us, our_parent };

struct Program {
  struct Passed {
    int ours;
    int theirs;
  };
  enum class Group { ours, own, session };
  enum class Signals { as_ours, defaults };

  std::string path;
  std::vector<std::string> arguments;  ///< argv; the first is the program's name
  /// NAME=VALUE; empty optional: the caller's
  std::optional<std::vector<std::string>> environment;
  std::vector<Passed> descriptors;
  /// executed in place of the path: a descriptor, by its number in the child
  int executed = -1;
  int death_signal = SIGKILL;  ///< sent when the calling process ends; 0: the program outlives it
  /// With a group of its own, kill() also reaches the processes that the program has started.
  Group group = Group::ours;
  Signals signals = Signals::as_ours;  ///< as_ours: signals that the caller ignores stay ignored
  std::optional<mode_t> umask;
  const char* directory = nullptr;  ///< work directory; nullptr: the caller's
  ChildOf parent = ChildOf::us;
  /// Called in the child before all settings above except group, signals and death signal; false
  /// means failure, with errno. Use it to drop privilege. Without `prepare`, the child shares the
  /// caller's memory until it executes the program (as after vfork), so a large process is not
  /// copied. With it, memory is never shared: a process that may trace the less privileged child
  /// could otherwise write into the caller.
  std::function<bool()> prepare;
};

/// How a process has ended.
class ExitStatus {
 public:
  explicit ExitStatus(int status) : status_(status) {}
  [[nodiscard]] bool success() const { return status_ == 0; }
  [[nodiscard]] bool signalled() const { return (status_ & 0x7f) != 0; }
  [[nodiscard]] int signal() const { return status_ & 0x7f; }
  /// Returns its exit status or, as in a shell, 128 plus the signal that has ended it.
  [[nodiscard]] int code() const { return signalled() ? 128 + signal() : (status_ >> 8) & 0xff; }
  /// Returns the status as of wait(2).
  [[nodiscard]] int raw() const { return status_; }

 private:
  int status_;
};

/// A process started by this one. The destructor kills it and waits for it.
class Child {
 public:
  static Result<Child> start(const Program& program);
  /// Forks this process; the child exits with the result of `work`. `what`: its purpose, for the
  /// error.
  static Result<Child> run(const std::function<int()>& work, std::string_view what,
                           int death_signal = SIGKILL, ChildOf parent = ChildOf::us);

  Child() = default;
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        has_group_(other.has_group_),
        watch_(std::move(other.watch_)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(has_group_, other.has_group_);
    std::swap(watch_, other.watch_);
    return *this;
  }
  ~Child() { kill(); }

  [[nodiscard]] bool running() const { return pid_ > 0; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Returns a descriptor that becomes readable when the process has ended.
  [[nodiscard]] int watch() const { return watch_.get(); }
  ExitStatus wait();
  /// Returns an empty optional while the process runs.
  std::optional<ExitStatus> try_wait();
  /// Kills the process with SIGKILL, and its group if it has one of its own.
  void kill();
  /// Detaches the process: it is neither killed nor awaited any more.
  void release() { pid_ = -1; }

 private:
  Child(pid_t pid, bool has_group);
  pid_t pid_ = -1;
  bool has_group_ = false;
  UniqueFd watch_;  // pidfd
};

/// Calls fork(2), for code that continues in both processes.
pid_t fork_process();

/// Returns the path of the program of this name along `path`. Skips relative directories, because
/// the work directory must not provide programs. A name with a slash is returned as it is.
/// ErrorKind::not_found if there is no such program.
Result<std::string> find_program(const std::string& name, std::string_view path);

// --- pipe ---

/// Opens 0, 1 and 2 on /dev/null where they are closed, as cron and daemons leave them. Call it
/// first in main: otherwise later descriptors would be used as input and output.
inline void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

/// Returns the read end and the write end.
inline Result<std::pair<UniqueFd, UniqueFd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "create a pipe");
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

/// Reads until all writers have closed the pipe, and returns at most `limit` bytes.
inline std::string read_pipe(int fd, std::size_t limit) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    if (text.size() < limit) text.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace spc
