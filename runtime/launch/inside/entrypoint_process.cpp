#include "launch/inside/entrypoint_process.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/process/child.hpp"
#include "base/process/descendants.hpp"
#include "base/socket.hpp"

namespace spc {
namespace {

/// From the keeper to the task that waits.
struct Report {
  enum Kind { line, ended };
  Kind kind{};
  EntrypointEnd end;
  std::size_t size = 0;
  char text[1024] = {};
};

/// How much is read after the end, when what it started goes on printing.
constexpr std::size_t kMostAfterEnd = 1 << 20;

/// Looks after the entrypoint's process: passes on what it prints, watches the time, and clears up.
class Keeper {
 public:
  Keeper(const EntrypointProcess& process, UniqueFd report)
      : process_(process), report_(std::move(report)) {}
  [[noreturn]] void run();

 private:
  Result<void> start();
  EntrypointEnd watch();
  void read_output(std::size_t most);
  void tell(std::string_view text);

  const EntrypointProcess& process_;
  UniqueFd report_;
  UniqueFd output_;
  Child child_;
  std::string line_;
  bool heard_ = true;  ///< the task that waits is alive
};

/// Nothing of the step's may stay open here, or the step would not end before the entrypoint's
/// servers.
void leave_only(UniqueFd& report, const EntrypointProcess& process) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  std::vector<int> kept = {report.get(), process.probe, process.found};
  std::sort(kept.begin(), kept.end());
  unsigned from = 3;
  for (const int fd : kept) {
    if (static_cast<unsigned>(fd) > from)
      ::syscall(SYS_close_range, from, static_cast<unsigned>(fd) - 1, 0U);
    from = static_cast<unsigned>(fd) + 1;
  }
  ::syscall(SYS_close_range, from, ~0U, 0U);
}

void Keeper::run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the entrypoint's processes leave behind becomes ours
  ::setsid();
  // A signal for the step ends the task that waits, and that ends the entrypoint.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE}) ::signal(number, SIG_IGN);
  leave_only(report_, process_);
  const auto started = start();
  const auto end =
      started ? watch()
              : EntrypointEnd{EntrypointEnd::Kind::not_executed, started.error().sys_errno()};
  const bool good = end.kind == EntrypointEnd::Kind::exited && end.number == 0;
  if (!good) end_descendants(child_.pid());
  read_output(kMostAfterEnd);
  if (!line_.empty()) tell(line_);
  Report report;
  report.kind = Report::ended;
  report.end = end;
  [[maybe_unused]] const auto sent = send_struct(report_.get(), report);
  report_.reset();
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(number, SIG_DFL);
  // The servers that it has started print into the pipe as long as they live: somebody has to read
  // it.
  ::fcntl(output_.get(), F_SETFL, 0);
  char thrown_away[4096];
  while (good && ::read(output_.get(), thrown_away, sizeof thrown_away) > 0) {
  }
  ::_exit(0);
}

Result<void> Keeper::start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
  output_.reset(ends[0]);
  const UniqueFd input(ends[1]);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  child_ = SPC_TRY(Child::start({.path = process_.program,
                                 .arguments = process_.arguments,
                                 .environment = process_.environment,
                                 .descriptors = {{input.get(), STDOUT_FILENO},
                                                 {input.get(), STDERR_FILENO},
                                                 {process_.probe, kProbeDescriptor},
                                                 {process_.found, kFoundDescriptor}},
                                 .group = Program::Group::session,
                                 .signals = Program::Signals::defaults}));
  return {};
}

EntrypointEnd Keeper::watch() {
  const auto limit = static_cast<std::uint64_t>(std::chrono::microseconds(process_.limit).count());
  const std::uint64_t begin = now_us();
  for (bool silent = false;;) {
    pollfd events[] = {{child_.watch(), POLLIN, 0},
                       {silent ? -1 : output_.get(), POLLIN, 0},
                       {report_.get(), 0, 0}};
    const std::uint64_t passed = now_us() - begin;
    if (limit != 0 && passed >= limit) return {EntrypointEnd::Kind::timed_out, 0};
    const int left =
        limit == 0 ? -1
                   : static_cast<int>(std::min<std::uint64_t>((limit - passed) / 1000 + 1, 60'000));
    if (::poll(events, std::size(events), left) < 0 && errno != EINTR)
      return {EntrypointEnd::Kind::signalled, SIGKILL};
    if (!heard_ || events[2].revents != 0)
      return {EntrypointEnd::Kind::signalled, SIGKILL};  // nobody waits any more
    if ((events[1].revents & POLLIN) != 0) read_output(sizeof(Report::text));
    if ((events[1].revents & (POLLIN | POLLHUP)) == POLLHUP)
      silent = true;  // it has closed its output and goes on
    if (events[0].revents != 0) {
      const ExitStatus status = child_.wait();
      if (status.signalled()) return {EntrypointEnd::Kind::signalled, status.signal()};
      return {EntrypointEnd::Kind::exited, status.code()};
    }
  }
}

void Keeper::read_output(std::size_t most) {
  char text[sizeof(Report::text)];
  while (most > 0) {
    const ssize_t size = ::read(output_.get(), text, std::min(most, sizeof text));
    if (size <= 0) return;
    most -= static_cast<std::size_t>(size);
    for (const char c : std::string_view(text, static_cast<std::size_t>(size))) {
      if (c == '\0') continue;
      if (c != '\n' && line_.size() < sizeof(Report::text)) {
        line_ += c;
        continue;
      }
      tell(line_);
      line_.clear();
      if (c != '\n') line_ += c;
    }
  }
}

void Keeper::tell(std::string_view text) {
  Report report;
  report.kind = Report::line;
  report.size = text.copy(report.text, sizeof report.text);
  heard_ = send_struct(report_.get(), report).has_value() && heard_;
}

}  // namespace

Result<EntrypointEnd> run_process(const EntrypointProcess& process,
                                  const std::function<void(std::string_view)>& tell) {
  auto line = SPC_TRY(socket_pair());
  // A grandchild: nobody waits for the keeper, which may live as long as the servers that the
  // entrypoint has started.
  const auto keep = [&]() -> int {
    line.first.reset();
    Keeper(process, std::move(line.second)).run();
  };
  const auto leave_keeper = [&] {
    auto keeper = Child::run(keep, "keep the entrypoint", 0);
    if (keeper) keeper->release();
    return keeper ? 0 : 1;
  };
  auto middle = SPC_TRY(Child::run(leave_keeper, "run the entrypoint", 0));
  middle.wait();
  line.second.reset();
  for (;;) {
    Report report;
    if (!receive_struct(line.first.get(), report))
      return Error(ErrorKind::unavailable, "its supervisor exited");
    if (report.kind == Report::ended) return report.end;
    tell(std::string_view(report.text, std::min(report.size, sizeof report.text)));
  }
}

}  // namespace spc
