#include "launch/after/stop_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/process/child.hpp"
#include "base/socket.hpp"
#include "protocol/save.hpp"
#include "task/entering/enter.hpp"

namespace spc {
namespace {

void say(int stepd, std::string_view line, SaveMessageKind kind) {
  SaveMessage message;
  message.kind = kind;
  message.text.set(line);
  [[maybe_unused]] const auto sent = send_struct(stepd, message);
}

/// Lines go to slurmstepd, which tells the user.
class StepdLog final : public Log {
 public:
  explicit StepdLog(int stepd) : stepd_(stepd) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    const std::string prefix =
        level == LogLevel::warning ? "spank-container: warning: " : "spank-container: ";
    say(stepd_, prefix + std::string(line), SaveMessageKind::progress);
  }

 private:
  int stepd_;
};

/// Passes on what slurmstepd, the tasks and `save` say to each other, until all tasks have ended
/// and `save` is done. False if slurmstepd is gone. `lost`: `save` was here and has ended without
/// its last word.
bool wait_for_the_end(int stepd, int save, bool& lost) {
  bool has_save = false;
  bool ended = false;
  while (!ended || has_save) {
    pollfd events[] = {{stepd, POLLIN, 0}, {save, POLLIN, 0}};
    if (::poll(events, 2, -1) < 0) continue;
    SaveMessage message;
    if (events[0].revents != 0) {
      if (!receive_struct(stepd, message)) return false;
      ended = ended || message.kind == SaveMessageKind::save;
      if (has_save) [[maybe_unused]]
        const auto sent = send_struct(save, message);
    }
    if (events[1].revents == 0) continue;
    if (!receive_struct(save, message)) {
      lost = has_save;
      has_save = false;
      save = -1;
      continue;
    }
    if (message.kind == SaveMessageKind::started) has_save = true;
    if (message.kind == SaveMessageKind::progress || message.kind == SaveMessageKind::done) {
      say(stepd, message.text.view(), SaveMessageKind::progress);
    }
    if (message.kind == SaveMessageKind::done) has_save = false;
  }
  return true;
}

/// In the child: keeps three descriptors, at 3 to 5, and nothing else of the task's.
[[noreturn]] void live(int stepd, int save, int confirmation,
                       const std::function<void(Log&)>& stop) {
  ::setsid();
  ::prctl(PR_SET_NAME, "hooks");
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  // What ends the step's tasks lets it come to its end; what kills the step kills it, too.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(number, SIG_IGN);
  if (!give_up_privilege()) ::_exit(126);
  SaveMessage message;
  message.kind = SaveMessageKind::started;
  if (!send_struct(stepd, message)) ::_exit(126);
  int kept[] = {stepd, save, confirmation};
  for (int& fd : kept) fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 100);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2}) ::dup2(null, fd);
  for (int i = 0; i < 3; ++i) ::dup3(kept[i], 3 + i, O_CLOEXEC);
  ::syscall(SYS_close_range, 6, ~0U, 0);
  [[maybe_unused]] const int root = ::chdir("/");

  bool lost = false;
  if (!wait_for_the_end(3, 4, lost)) ::_exit(1);
  char yes = 0;
  if (::read(5, &yes, 1) == 1) {  // else the start has failed, and its error was told
    StepdLog log(3);
    if (lost) log.write(LogLevel::info, "save the container: the saver exited unexpectedly");
    stop(log);
  }
  say(3, "", SaveMessageKind::done);
  // Whoever waits for this process must have read all that it says before it is gone.
  SaveMessage last;
  while (receive_struct(3, last)) {
  }
  ::_exit(0);
}

}  // namespace

Result<StopProcess> StopProcess::start(const StepChannel& step, std::function<void(Log&)> stop) {
  auto line = SPC_TRY(socket_pair());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Error::from_errno(errno, "make a pipe");
  const UniqueFd confirmed(ends[0]);
  StopProcess process;
  process.confirmation_.reset(ends[1]);
  // A child of slurmstepd, as `save` is.
  const auto begin = [&]() -> int {
    live(step.save.get(), line.second.get(), confirmed.get(), stop);
  };
  SPC_TRY(Child::run(begin, "run stop hooks", 0, ChildOf::our_parent));
  process.of_save_.save = std::move(line.first);
  return process;
}

void StopProcess::confirm() {
  if (confirmation_) [[maybe_unused]]
    const auto written = ::write(confirmation_.get(), "y", 1);
  confirmation_.reset();
}

}  // namespace spc
