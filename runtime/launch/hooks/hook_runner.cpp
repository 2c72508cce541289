#include "launch/hooks/hook_runner.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/descendants.hpp"
#include "base/socket.hpp"
#include "protocol/task.hpp"
#include "task/ambient.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOfLine = 1000;  ///< bytes; longer ones are divided
constexpr std::size_t kMostToLog = 8192;   ///< of one program
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kMostConnections = 16;

}  // namespace

/// A program while it runs.
struct HookRunner::Running {
  std::string name;
  std::string path;
  Child child;
  UniqueFd output;
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
  if (path.size() >= sizeof address.sun_path)
    return Error::from_errno(ENAMETOOLONG, "make socket " + in_quotes(path));
  path.copy(address.sun_path, path.size());
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_ ||
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), kMostConnections) != 0) {
    return Error::from_errno(errno, "make socket " + in_quotes(path));
  }
  mount_ = std::move(mount);
  step_ = step;
  environment_.push_back(std::string(kHookMountSocket) + "=" + path);
  return {};
}

Result<void> HookRunner::run(const std::string& name, const std::vector<std::string>& arguments) {
  Running running;
  running.name = name;
  running.path = arguments.back();
  SPC_TRY(start(running, arguments));
  SPC_TRY(serve(running));
  const ExitStatus status = running.child.wait();
  read_lines(running);
  if (status.signalled())
    return failure(running, "was killed by signal " + std::to_string(status.signal()));
  if (!status.success())
    return failure(running, "exited with return code " + std::to_string(status.code()));
  return {};
}

Result<void> HookRunner::start(Running& running, const std::vector<std::string>& arguments) {
  int output[2];
  if (::pipe2(output, O_CLOEXEC) != 0)
    return Error::from_errno(errno, formatted("hook {}: make a pipe", running.name));
  running.output.reset(output[0]);
  UniqueFd output_end(output[1]);
  ::fcntl(running.output.get(), F_SETFL, O_NONBLOCK);
  Program program{.path = arguments.front(),
                  .arguments = arguments,
                  .environment = environment_,
                  .descriptors = {{output_end.get(), STDERR_FILENO}},
                  .group = Program::Group::session,
                  .signals = Program::Signals::defaults};
  if (keeps_capabilities_) {
    program.prepare = [] {
      keep_capabilities_when_executing();
      return true;
    };
  }
  auto started = Child::start(program);
  if (!started) {
    return Error::from_errno(
               started.error().sys_errno(),
               formatted("hook {}: execute {}", running.name, in_quotes(running.path)))
        .hint("its interpreter must exist on the node");
  }
  running.child = *std::move(started);
  return {};
}

/// Until it has ended.
Result<void> HookRunner::serve(Running& running) {
  const std::uint64_t end = now_us() + std::uint64_t{seconds_} * 1'000'000;
  for (bool silent = false;;) {
    std::vector<pollfd> events = {
        {running.child.watch(), POLLIN, 0},
        {silent ? -1 : running.output.get(), POLLIN, 0},
        {step_, 0, 0},
        {connections_.size() < kMostConnections ? listener_.get() : -1, POLLIN, 0}};
    const std::size_t fixed = events.size();
    for (const UniqueFd& connection : connections_) events.push_back({connection.get(), POLLIN, 0});
    const std::uint64_t moment = now_us();
    if (moment >= end) {
      end_descendants(running.child.pid());
      running.child.release();
      read_lines(running);
      return failure(running, formatted("took longer than {} seconds", seconds_))
          .hint("hook_timeout in config.toml is the limit");
    }
    const int left = static_cast<int>(std::min<std::uint64_t>((end - moment) / 1000 + 1, 60'000));
    if (::poll(events.data(), events.size(), left) < 0) continue;
    if ((events[2].revents & (POLLHUP | POLLERR)) != 0) {
      end_descendants(running.child.pid());
      running.child.release();
      return Error(ErrorKind::unavailable,
                   formatted("hook {}: the start of the container has ended", running.name));
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
    if (events[0].revents != 0) return {};
  }
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
    log_.write(LogLevel::info, formatted("hook {}: {}", running.name, line));
    running.logged += line.size() + 1;
    if (running.logged >= kMostToLog)
      log_.write(LogLevel::info, formatted("hook {}: (further output omitted)", running.name));
  } else {
    running.last.push_back(std::move(line));
    if (running.last.size() > kLastLines) running.last.pop_front();
  }
}

void HookRunner::answer(std::size_t connection) {
  HookMountRequest request;
  const int socket = connections_[connection].get();
  const auto descriptors = receive_struct(socket, request, 2);
  const bool tmpfs = (request.flags & TaskMessage::source_tmpfs) != 0;
  // The builder takes paths only, and gives the container up for anything else.
  const auto is_path = [](const UniqueFd& file) {
    return (::fcntl(file.get(), F_GETFL) & O_PATH) != 0;
  };
  bool good = descriptors && descriptors->size() == (tmpfs ? 1 : 2) &&
              std::ranges::all_of(*descriptors, is_path);
  if (good) {
    HookMountAnswer answer;
    answer.error = mount_(request, *descriptors);
    good = send_struct(socket, answer, {}, WhenFull::fail).has_value();
  }
  if (!good) connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(connection));
}

Error HookRunner::failure(const Running& running, const std::string& how) {
  for (const std::string& line : running.last)
    log_.write(LogLevel::warning, formatted("hook {}: {}", running.name, line));
  return Error(ErrorKind::invalid,
               formatted("hook {}: {} {}", running.name, printable(running.path), how));
}

}  // namespace spc
