#pragma once

#include <sys/types.h>

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

/// The one place that starts processes, but for those that slurmstepd and the agent start as root
/// (agent/privilege, task/step_agent), who want nothing between clone and exec but system calls
/// that can be read on one page.
///
///   auto child = SPC_TRY(Child::start({.path = "/usr/bin/x", .arguments = {"x", "--all"},
///   .descriptors = {{file, 1}}})); if (child.wait().code() != 0) ...
///
/// Starting fails, with the errno, if the program cannot be executed. It begins with an empty
/// signal mask; descriptors that are not passed are closed, 0 to 2 on /dev/null.

/// Whose child the new process is. A sibling of ours can be waited for, and signalled, by our
/// parent alone.
enum class ChildOf { us, our_parent };

struct Program {
  struct Passed {
    int ours;
    int theirs;
  };
  enum class Group { ours, own, session };
  enum class Signals { as_ours, defaults };

  std::string path;
  std::vector<std::string> arguments;                   ///< the first is what it is called
  std::optional<std::vector<std::string>> environment;  ///< NAME=VALUE; nothing: ours
  std::vector<Passed> descriptors;
  int executed = -1;  ///< the passed descriptor, as theirs, that is executed in place of the path
  int death_signal = SIGKILL;          ///< when we end; 0: it outlives us
  Group group = Group::ours;           ///< of its own: kill() reaches what it has started, too
  Signals signals = Signals::as_ours;  ///< those that are ignored
  std::optional<mode_t> umask;
  const char* directory = nullptr;  ///< to work in; nullptr: ours
  ChildOf parent = ChildOf::us;
  /// Called in the child before anything of the above but group, signals and death signal; false:
  /// errno says why not. This is the place to give up privilege. Without it the child shares our
  /// memory until it executes (as after vfork), which spares a large process the copy; with it
  /// never: whoever may trace a process with less privilege could write into ours.
  std::function<bool()> prepare;
};

/// How a process has ended.
class ExitStatus {
 public:
  explicit ExitStatus(int status) : status_(status) {}
  [[nodiscard]] bool success() const { return status_ == 0; }
  [[nodiscard]] bool signalled() const { return (status_ & 0x7f) != 0; }
  [[nodiscard]] int signal() const { return status_ & 0x7f; }
  /// Its exit status; as in a shell, 128 and the signal that has ended it.
  [[nodiscard]] int code() const { return signalled() ? 128 + signal() : (status_ >> 8) & 0xff; }
  /// As of wait(2).
  [[nodiscard]] int raw() const { return status_; }

 private:
  int status_;
};

/// A process that we have started. It is killed and waited for when this object goes.
class Child {
 public:
  static Result<Child> start(const Program& program);
  /// A copy of this process that ends with what `work` returns as its exit status. `what`: for the
  /// error, what it is for.
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
  /// Becomes readable when it has ended.
  [[nodiscard]] int watch() const { return watch_.get(); }
  ExitStatus wait();
  /// Nothing while it runs.
  std::optional<ExitStatus> try_wait();
  /// With SIGKILL, and with its group if it has one of its own.
  void kill();
  /// From now on it ends by itself.
  void release() { pid_ = -1; }

 private:
  Child(pid_t pid, bool has_group);
  pid_t pid_ = -1;
  bool has_group_ = false;
  UniqueFd watch_;  // pidfd
};

/// fork(2), for what goes on in both processes.
pid_t fork_process();

/// Where along `path` the program of this name is, in absolute directories only: the work directory
/// is no place for programs. A name with a slash is its own place. ErrorKind::not_found: nowhere.
Result<std::string> find_program(const std::string& name, std::string_view path);

}  // namespace spc
