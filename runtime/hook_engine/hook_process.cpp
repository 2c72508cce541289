#include "hook_engine/hook_process.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/unique_fd.hpp"

namespace spc {
namespace {

constexpr int kMostLines = 200;
constexpr int kMostPieces = 256;  ///< of what is still to be read when it has ended: more than a pipe holds
constexpr std::size_t kMostOfLine = 1000;

struct Pipe {
  UniqueFd out, in;
  static Result<Pipe> open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
    Pipe pipe;
    pipe.out.reset(ends[0]);
    pipe.in.reset(ends[1]);
    return pipe;
  }
};

std::vector<char*> as_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The kernel's own words for libcap's: no capability in any set, by raw calls as in every child.
bool give_up_capabilities() {
  struct {
    std::uint32_t version = 0x20080522;  // _LINUX_CAPABILITY_VERSION_3
    int pid = 0;
  } header;
  const std::uint32_t none[6] = {};
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  return ::syscall(SYS_capset, &header, none) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

struct Streams {
  int input, output, errors, report;
};

/// In the child: leaves only what the program is to have, and says why it cannot be executed.
[[noreturn]] void become(const HookProcess& process, char* const* arguments, char* const* environment, Streams streams) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setsid();
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // First out of the way of the numbers that are to be used.
  for (int* fd : {&streams.input, &streams.output, &streams.errors, &streams.report}) *fd = ::fcntl(*fd, F_DUPFD_CLOEXEC, 100);
  const int program = process.descriptor < 0 ? -1 : ::fcntl(process.descriptor, F_DUPFD_CLOEXEC, 100);
  ::dup2(streams.input, STDIN_FILENO);
  ::dup2(streams.output, STDOUT_FILENO);
  ::dup2(streams.errors, STDERR_FILENO);
  ::syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
  if (program >= 0) ::dup2(program, 3);  // stays open: the interpreter of a script opens it
  ::umask(022);
  int failed = 0;
  if (!give_up_capabilities() || ::chdir("/") != 0) {
    failed = errno;
  } else if (program >= 0) {
    ::syscall(SYS_execveat, 3, "", arguments, environment, AT_EMPTY_PATH);
    failed = errno;
  } else {
    ::execve(process.program.c_str(), arguments, environment);
    failed = errno;
  }
  [[maybe_unused]] const auto written = ::write(streams.report, &failed, sizeof failed);
  ::_exit(127);
}

/// The parent's side: reads what the child prints until it ends.
class Watch {
 public:
  Watch(const HookProcess& process, const std::function<void(std::string_view)>& tell) : process_(process), tell_(tell) {}

  HookProcessEnd until_the_end(pid_t child, const UniqueFd& child_descriptor, UniqueFd output, UniqueFd errors) {
    output_ = std::move(output);
    errors_ = std::move(errors);
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(errors_.get(), F_SETFL, O_NONBLOCK);
    HookProcessEnd end = wait(child_descriptor.get());
    ::kill(-child, SIGKILL);  // first, so that the number still is that of its group
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (end.kind == HookProcessEnd::Kind::exited) {
      // Not to the end: what it has left behind, out of its group, may print for ever.
      for (int pieces = 0; pieces < kMostPieces && read_errors(); ++pieces) {
      }
      if (!read_output()) end.kind = HookProcessEnd::Kind::printed_too_much;
      if (WIFEXITED(status)) end.number = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) end = {HookProcessEnd::Kind::signalled, WTERMSIG(status), {}};
    }
    if (!line_.empty()) say_line();
    end.output = std::move(text_);
    return end;
  }

 private:
  HookProcessEnd wait(int child) {
    const auto limit = static_cast<std::uint64_t>(std::chrono::microseconds(process_.limit).count());
    const std::uint64_t begin = now_us();
    for (;;) {
      const std::uint64_t passed = now_us() - begin;
      if (passed >= limit) return {HookProcessEnd::Kind::timed_out, 0, {}};
      pollfd events[] = {{child, POLLIN, 0}, {output_.get(), POLLIN, 0}, {errors_.get(), POLLIN, 0}};
      const int left = static_cast<int>(std::min<std::uint64_t>((limit - passed) / 1000 + 1, 60'000));
      if (::poll(events, std::size(events), left) < 0) continue;
      if (events[1].revents != 0 && !read_output()) return {HookProcessEnd::Kind::printed_too_much, 0, {}};
      if (events[2].revents != 0) read_errors();
      if (events[0].revents != 0) return {HookProcessEnd::Kind::exited, 0, {}};
    }
  }

  /// False: it was too much.
  bool read_output() {
    char buffer[64 * 1024];
    for (;;) {
      const ssize_t size = ::read(output_.get(), buffer, sizeof buffer);
      if (size == 0) output_.reset();
      if (size <= 0) return true;
      text_.append(buffer, static_cast<std::size_t>(size));
      if (text_.size() > kMostHookOutput) return false;
    }
  }

  /// One piece: who prints without end must not keep us from looking at the clock. False: there is nothing.
  bool read_errors() {
    char buffer[4096];
    const ssize_t size = ::read(errors_.get(), buffer, sizeof buffer);
    if (size == 0) errors_.reset();
    for (ssize_t i = 0; i < size; ++i) {
      if (buffer[i] == '\n') {
        say_line();
      } else if (line_.size() < kMostOfLine) {
        line_ += buffer[i];
      }
    }
    return size > 0;
  }

  void say_line() {
    if (++lines_ <= kMostLines) tell_(line_);
    if (lines_ == kMostLines + 1) tell_("further output is not shown");
    line_.clear();
  }

  const HookProcess& process_;
  const std::function<void(std::string_view)>& tell_;
  UniqueFd output_, errors_;
  std::string text_, line_;
  int lines_ = 0;
};

}  // namespace

Result<HookProcessEnd> run_hook_process(const HookProcess& process, const std::function<void(std::string_view)>& tell) {
  const auto input = SPC_TRY(sealed_memory_file("spank-container hook", process.input));
  ::lseek(input.get(), 0, SEEK_SET);
  auto output = SPC_TRY(Pipe::open());
  auto errors = SPC_TRY(Pipe::open());
  auto report = SPC_TRY(Pipe::open());
  const auto arguments = as_pointers(process.arguments);
  const auto environment = as_pointers(process.environment);
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "fork");
  if (child == 0) {
    become(process, arguments.data(), environment.data(), {input.get(), output.in.get(), errors.in.get(), report.in.get()});
  }
  const UniqueFd child_descriptor(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  output.in.reset();
  errors.in.reset();
  report.in.reset();
  auto end = Watch(process, tell).until_the_end(child, child_descriptor, std::move(output.out), std::move(errors.out));
  int failed = 0;
  if (::read(report.out.get(), &failed, sizeof failed) == sizeof failed) {
    end.kind = HookProcessEnd::Kind::not_executed;
    end.number = failed;
  }
  return end;
}

Error failure_of(const HookProcess& process, const HookProcessEnd& end, std::string_view last_lines) {
  using Kind = HookProcessEnd::Kind;
  const std::string what = "run " + in_quotes(process.program);
  std::string why;
  switch (end.kind) {
    case Kind::exited: why = "exited with status " + std::to_string(end.number); break;
    case Kind::signalled: why = "was killed by signal " + std::to_string(end.number); break;
    case Kind::timed_out: why = "did not finish within " + std::to_string(process.limit.count()) + " s"; break;
    case Kind::printed_too_much: why = "printed more than " + std::to_string(kMostHookOutput >> 20) + " MiB"; break;
    case Kind::not_executed: return Error::from_errno(end.number, what).hint("its interpreter must exist on the node");
  }
  if (!last_lines.empty()) why += "; last output: " + in_quotes(last_lines);
  return Error(ErrorKind::system, what + ": " + why);
}

}  // namespace spc
