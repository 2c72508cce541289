// Processes that run after a step's tasks: the saver and the stop hooks.

#include "launch/step_end.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "protocol/save.hpp"
#include "request/container_name.hpp"
#include "task/entering/enter.hpp"

namespace spc {

// --- saver ---

namespace {

/// Registers with slurmstepd, in the child before exec. The child still has the user's credentials,
/// and the kernel identifies the sender.
bool introduce_itself(int slurmstepd) {
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (!give_up_privilege()) return false;
  SaveMessage message;
  message.kind = SaveMessageKind::started;
  return send_struct(slurmstepd, message).has_value();
}

/// Tells the stop process that the task reports the end of the saver, which may have registered.
void withdraw(int stop_process) {
  SaveMessage message;
  message.kind = SaveMessageKind::failed;
  [[maybe_unused]] const auto sent = send_struct(stop_process, message);
}

/// Returns the settings read from an image that is only a file system, whose record in the step is
/// empty.
Result<UniqueFd> settings_file(const ImageSettings& image) {
  std::string records;
  add_record(records, "settings", "files");
  for (const std::string& variable : image.environment) add_record(records, "env", variable);
  if (!image.workdir.empty()) add_record(records, "workdir", image.workdir);
  return sealed_memory_file("spank-container settings", records);
}

}  // namespace

Result<Saver> Saver::start(const StepChannel& step, const std::string& path,
                           const std::string& name, MessageStyle style,
                           const std::map<std::string, std::string>& job) {
  const std::string program = own_program("save");
  if (::access(program.c_str(), X_OK) != 0) {
    return Error::from_errno(errno, "start " + in_quotes(program))
        .hint("install spank-container on this node");
  }
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto cpus = job.find("SLURM_CPUS_ON_NODE");
  const std::string cpus_text = cpus == job.end() ? "0" : cpus->second;
  const std::string shown_name =
      (style == MessageStyle::pyxis ? "pyxis_" : "") + (name.empty() ? step_name(job) : name);
  std::vector<std::string> environment;
  if (const auto latest = job.find("SOURCE_DATE_EPOCH"); latest != job.end())
    environment = {latest->first + "=" + latest->second};
  // The parent is slurmstepd and not the task, which could wait for the child. When Slurm begins to
  // cancel a step, before it kills, it signals only its own children.
  const int slurmstepd = step.save.get();
  auto started =
      Child::start({.path = program,
                    .arguments = {"save", path, shown_name, cpus_text, message_prefix(style)},
                    .environment = std::move(environment),
                    .descriptors = {{slurmstepd, kSaveSocket}, {theirs.get(), kSaveTaskSocket}},
                    .death_signal = 0,
                    .group = Program::Group::session,
                    .parent = ChildOf::our_parent,
                    .prepare = [slurmstepd] { return introduce_itself(slurmstepd); }});
  if (!started) {
    withdraw(step.save.get());
    return std::move(started).error().during("start the saver");
  }
  theirs.reset();

  SaveMessage answer;
  if (!receive_struct(ours.get(), answer)) {
    withdraw(step.save.get());
    return Error(ErrorKind::unavailable, "the saver exited unexpectedly")
        .hint("if it was not cancelled, increase --mem");
  }
  if (answer.kind != SaveMessageKind::opened) return answer.error.error();
  Saver saver;
  saver.line_ = std::move(ours);
  return saver;
}

/// Ignores the end of the saver, which the stop process reports.
Result<void> Saver::give(int root, int record, const ImageSettings& settings,
                         const std::string& image) {
  const UniqueFd line = std::move(line_);
  UniqueFd in_files;
  if (settings.in_files) in_files = SPC_TRY(settings_file(settings));
  SaveMessage message;
  message.kind = SaveMessageKind::tree;
  message.text.set(image);
  const int passed[] = {root, record, in_files.get()};
  SaveMessage known{.kind = SaveMessageKind::known};
  const bool is_given =
      send_struct(line.get(), message, std::span(passed, in_files ? 3 : 2)).has_value();
  if (is_given && !image.empty() && receive_struct(line.get(), known) &&
      known.kind == SaveMessageKind::failed)
    return known.error.error();
  return {};
}

void tell_saver_of_task(const StepChannel& step) {
  SaveMessage message;
  message.kind = SaveMessageKind::entered;
  [[maybe_unused]] const auto sent = send_struct(step.step.get(), message, {}, WhenFull::fail);
}

// --- stop process ---

namespace {

void say(int stepd, std::string_view line, SaveMessageKind kind) {
  SaveMessage message;
  message.kind = kind;
  message.text.set(line);
  [[maybe_unused]] const auto sent = send_struct(stepd, message);
}

/// A log whose lines go to the user through slurmstepd.
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

/// The saver or the report, at the other end of `socket`.
struct Relayed {
  int socket = -1;
  bool is_running = false, may_be_lost = false;
};

/// Messages of slurmstepd and the tasks so far.
struct Told {
  unsigned entered = 0;
  SaveMessage end{.kind = SaveMessageKind::entered};  ///< kind `save`: the tasks have ended
};

void send(const Relayed& to, const SaveMessage& message) {
  [[maybe_unused]] const auto sent = send_struct(to.socket, message);
}

/// Handles a message of the saver or report. Returns false if the container was not saved.
bool relay(Relayed& one, int stepd, const Told& told) {
  SaveMessage message;
  if (!receive_struct(one.socket, message)) {
    one.socket = -1;
    if (!std::exchange(one.is_running, false) || one.may_be_lost) return true;
    say(stepd,
        "spank-container: save the container: the saver exited unexpectedly (hint: if it was not "
        "cancelled, increase --mem)",
        SaveMessageKind::progress);
    return false;
  }
  if (message.kind == SaveMessageKind::started) {
    one.is_running = true;
    one.may_be_lost = message.may_be_lost;
    for (unsigned i = 0; i < told.entered; ++i) send(one, {.kind = SaveMessageKind::entered});
    if (told.end.kind == SaveMessageKind::save) send(one, told.end);
    return true;
  }
  say(stepd, message.text.view(), SaveMessageKind::progress);
  if (message.kind != SaveMessageKind::progress) one.is_running = false;
  return message.kind != SaveMessageKind::failed;
}

/// Relays messages until all tasks, the saver and the report have ended. Returns whether nothing
/// has failed, or nothing if slurmstepd is gone.
std::optional<bool> wait_for_the_end(int stepd, Relayed (&relayed)[2]) {
  Told told;
  bool is_saved = true;
  while (told.end.kind != SaveMessageKind::save || relayed[0].is_running || relayed[1].is_running) {
    pollfd events[] = {
        {stepd, POLLIN, 0}, {relayed[0].socket, POLLIN, 0}, {relayed[1].socket, POLLIN, 0}};
    if (::poll(events, 3, -1) < 0) continue;
    if (events[0].revents != 0) {
      SaveMessage message;
      if (!receive_struct(stepd, message)) return std::nullopt;
      if (message.kind == SaveMessageKind::entered) ++told.entered;
      if (message.kind == SaveMessageKind::save) told.end = message;
      for (const Relayed& one : relayed)
        if (one.is_running) send(one, message);
    }
    for (std::size_t i = 0; i < 2; ++i)
      if (events[i + 1].revents != 0) is_saved = relay(relayed[i], stepd, told) && is_saved;
  }
  return is_saved;
}

/// Runs in the child: keeps four descriptors, at 3 to 6, and closes all others of the task.
[[noreturn]] void live(std::array<int, 4> kept, const std::function<void(Log&)>& stop,
                       const std::function<void()>& fail_step) {
  ::setsid();
  ::prctl(PR_SET_NAME, "hooks");
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  // Signals that end the step's tasks are ignored, so that the hooks can run. SIGKILL of the step
  // ends this process as well.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(number, SIG_IGN);
  if (!give_up_privilege()) ::_exit(126);
  SaveMessage message;
  message.kind = SaveMessageKind::started;
  if (!send_struct(kept[0], message)) ::_exit(126);
  for (int& fd : kept) fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 100);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2}) ::dup2(null, fd);
  for (int i = 0; i < 4; ++i) ::dup3(kept[static_cast<std::size_t>(i)], 3 + i, O_CLOEXEC);
  ::syscall(SYS_close_range, 7, ~0U, 0);
  [[maybe_unused]] const int root = ::chdir("/");

  Relayed relayed[] = {{.socket = 4}, {.socket = 5}};
  const auto is_saved = wait_for_the_end(3, relayed);
  if (!is_saved) ::_exit(1);
  if (!*is_saved) fail_step();
  char yes = 0;
  if (::read(6, &yes, 1) == 1) {  // otherwise the start has failed, and its error was reported
    StepdLog log(3);
    stop(log);
  }
  say(3, "", SaveMessageKind::done);
  // slurmstepd must have read all messages before this process exits.
  SaveMessage last;
  while (receive_struct(3, last)) {
  }
  ::_exit(0);
}

}  // namespace

Result<StopProcess> StopProcess::start(const StepChannel& step, std::function<void(Log&)> stop,
                                       std::function<void()> fail_step) {
  auto saver = SPC_TRY(socket_pair());
  auto report = SPC_TRY(socket_pair());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Error::from_errno(errno, "make a pipe");
  const UniqueFd confirmed(ends[0]);
  StopProcess process;
  process.confirmation_.reset(ends[1]);
  // A child of slurmstepd, as `save` is.
  const auto begin = [&]() -> int {
    live({step.save.get(), saver.second.get(), report.second.get(), confirmed.get()}, stop,
         fail_step);
  };
  SPC_TRY(Child::run(begin, "run stop hooks", 0, ChildOf::our_parent));
  process.of_save_.save = std::move(saver.first);
  process.of_report_.save = std::move(report.first);
  return process;
}

void StopProcess::confirm() {
  if (confirmation_) [[maybe_unused]]
    const auto written = ::write(confirmation_.get(), "y", 1);
  confirmation_.reset();
}

}  // namespace spc
