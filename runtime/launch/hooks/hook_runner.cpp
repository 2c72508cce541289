#include "launch/hooks/hook_runner.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "base/clock.hpp"
#include "base/socket.hpp"
#include "task/ambient.hpp"
#include "task/descendants.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOfLine = 1000;  ///< bytes; longer ones are divided
constexpr std::size_t kMostToLog = 8192;   ///< of one program
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kMostConnections = 16;
constexpr int kNotExecuted = 125;

std::vector<char*> as_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void become(char* const* arguments, char* const* environment, int output, bool keeps_capabilities, int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setsid();
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(null, STDIN_FILENO);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
  if (keeps_capabilities) keep_capabilities_when_executing();
  ::execve(arguments[0], arguments, environment);
  const int failed = errno;
  [[maybe_unused]] const auto written = ::write(report, &failed, sizeof failed);
  ::_exit(kNotExecuted);
}

}  // namespace

/// A program while it runs.
struct HookRunner::Running {
  std::string name;
  std::string path;
  pid_t pid = -1;
  UniqueFd process;  ///< pidfd
  UniqueFd output;
  UniqueFd not_executed;  ///< says an errno, or ends
  std::string line;
  std::deque<std::string> last;
  std::size_t logged = 0;
};

HookRunner::HookRunner(std::vector<std::string> environment, unsigned seconds, Log& log)
    : environment_(std::move(environment)), seconds_(seconds), log_(log) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/// What the programs have left in the background goes, too.
HookRunner::~HookRunner() { end_descendants(-1); }

Result<void> HookRunner::answer_at(const std::string& path, MountFor mount, int step) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return Error::from_errno(ENAMETOOLONG, "make socket " + in_quotes(path));
  path.copy(address.sun_path, path.size());
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_ || ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), kMostConnections) != 0) {
    return Error::from_errno(errno, "make socket " + in_quotes(path));
  }
  mount_ = std::move(mount);
  step_ = step;
  environment_.push_back(std::string(kHookMountSocket) + "=" + path);
  return {};
}

Result<void> HookRunner::run(const std::string& name, const std::vector<std::string>& arguments) {
  int output[2];
  int report[2];
  if (::pipe2(output, O_CLOEXEC) != 0) return Error::from_errno(errno, "hook " + name + ": make a pipe");
  Running running;
  running.name = name;
  running.path = arguments.back();
  running.output.reset(output[0]);
  UniqueFd output_end(output[1]);
  if (::pipe2(report, O_CLOEXEC) != 0) return Error::from_errno(errno, "hook " + name + ": make a pipe");
  running.not_executed.reset(report[0]);
  UniqueFd report_end(report[1]);
  ::fcntl(running.output.get(), F_SETFL, O_NONBLOCK);
  const auto pointers = as_pointers(arguments);
  const auto environment = as_pointers(environment_);
  running.pid = ::fork();
  if (running.pid < 0) return Error::from_errno(errno, "hook " + name + ": fork");
  if (running.pid == 0) {
    become(pointers.data(), environment.data(), output_end.get(), keeps_capabilities_, report_end.get());
  }
  running.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, running.pid, 0)));
  output_end.reset();
  report_end.reset();

  const std::uint64_t end = now_us() + std::uint64_t{seconds_} * 1'000'000;
  for (bool silent = false;;) {
    std::vector<pollfd> events = {{running.process.get(), POLLIN, 0},
                                  {silent ? -1 : running.output.get(), POLLIN, 0},
                                  {step_, 0, 0},
                                  {connections_.size() < kMostConnections ? listener_.get() : -1, POLLIN, 0}};
    const std::size_t fixed = events.size();
    for (const UniqueFd& connection : connections_) events.push_back({connection.get(), POLLIN, 0});
    const std::uint64_t moment = now_us();
    if (moment >= end) {
      end_descendants(running.pid);
      read_lines(running);
      return failure(running, "took longer than " + std::to_string(seconds_) + " seconds")
          .hint("hook_timeout in config.toml is the limit");
    }
    const int left = static_cast<int>(std::min<std::uint64_t>((end - moment) / 1000 + 1, 60'000));
    if (::poll(events.data(), events.size(), left) < 0) continue;
    if ((events[2].revents & (POLLHUP | POLLERR)) != 0) {
      end_descendants(running.pid);
      return Error(ErrorKind::unavailable, "hook " + name + ": the start of the container has ended");
    }
    if ((events[1].revents & POLLIN) != 0) read_lines(running);
    if ((events[1].revents & (POLLIN | POLLHUP)) == POLLHUP) silent = true;
    for (std::size_t i = connections_.size(); i-- > 0;) {
      if (events[fixed + i].revents != 0) answer(i);
    }
    if (events[3].revents != 0) {
      UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection) connections_.push_back(std::move(connection));
    }
    if (events[0].revents != 0) break;
  }
  int status = 0;
  ::waitpid(running.pid, &status, 0);
  read_lines(running);
  int not_executed = 0;
  if (::read(running.not_executed.get(), &not_executed, sizeof not_executed) == sizeof not_executed) {
    auto error = Error::from_errno(not_executed, "hook " + name + ": execute " + in_quotes(running.path));
    return std::move(error).hint("does its first line name a program of this node?");
  }
  if (WIFSIGNALED(status)) return failure(running, "was ended by signal " + std::to_string(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return failure(running, "exited with return code " + std::to_string(WEXITSTATUS(status)));
  return {};
}

void HookRunner::read_lines(Running& running) {
  char text[4096];
  // Whoever prints faster than this is not kept from it; and what was said by then is what counts.
  for (int pieces = 0; pieces < 64; ++pieces) {
    const ssize_t size = ::read(running.output.get(), text, sizeof text);
    if (size <= 0) break;
    for (const char c : std::string_view(text, static_cast<std::size_t>(size))) {
      if (c != '\n') running.line += c;
      if (c != '\n' && running.line.size() < kMostOfLine) continue;
      add_line(running, std::exchange(running.line, {}));
    }
  }
}

void HookRunner::add_line(Running& running, std::string line) {
  line = printable(line);
  if (running.logged < kMostToLog) {
    log_.write(LogLevel::info, "hook " + running.name + ": " + line);
    running.logged += line.size() + 1;
    if (running.logged >= kMostToLog) log_.write(LogLevel::info, "hook " + running.name + ": (further output omitted)");
  } else {
    running.last.push_back(std::move(line));
    if (running.last.size() > kLastLines) running.last.pop_front();
  }
}

void HookRunner::answer(std::size_t connection) {
  HookMountRequest request;
  const int socket = connections_[connection].get();
  const auto descriptors = receive_struct(socket, request);
  const bool tmpfs = (request.flags & HookMountRequest::tmpfs) != 0;
  bool good = descriptors && descriptors->size() == (tmpfs ? 1 : 2);
  if (good) {
    HookMountAnswer answer;
    answer.error = mount_(request, *descriptors);
    good = send_struct(socket, answer, {}, WhenFull::fail).has_value();
  }
  if (!good) connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(connection));
}

Error HookRunner::failure(const Running& running, const std::string& how) {
  for (const std::string& line : running.last) log_.write(LogLevel::warning, "hook " + running.name + ": " + line);
  return Error(ErrorKind::invalid, "hook " + running.name + ": " + printable(running.path) + " " + how);
}

}  // namespace spc
