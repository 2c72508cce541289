#include "launch/task/entrypoint.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "launch/task/task_notes.hpp"

namespace spc {

// --- entrypoint process ---

namespace {

constexpr std::size_t kMostOfLine = 1024;

/// A message from the keeper to the waiting task.
struct Report {
  enum { line, ended, not_executed } kind{};
  ProcessEnd::Kind how{};
  int number = 0;  ///< exit status, signal, or errno
  std::size_t size = 0;
  char text[kMostOfLine] = {};
};

/// Closes all other descriptors: the step would otherwise not end before the entrypoint's servers.
void leave_only(const UniqueFd& report, const Program& program) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  std::vector<int> kept = {report.get()};
  for (const auto& passed : program.descriptors) kept.push_back(passed.ours);
  std::sort(kept.begin(), kept.end());
  unsigned from = 3;
  for (const int fd : kept) {
    if (static_cast<unsigned>(fd) > from)
      ::syscall(SYS_close_range, from, static_cast<unsigned>(fd) - 1, 0U);
    from = static_cast<unsigned>(fd) + 1;
  }
  ::syscall(SYS_close_range, from, ~0U, 0U);
}

/// Runs the program and passes its output on. `output`: remains open for the processes that it has
/// left.
Result<ProcessEnd> run_watched(Program& program, const RunLimits& limits, const UniqueFd& report,
                               UniqueFd& output) {
  auto [reading, writing] = SPC_TRY(make_pipe());
  output = std::move(reading);
  program.descriptors.insert(program.descriptors.end(),
                             {{writing.get(), STDOUT_FILENO}, {writing.get(), STDERR_FILENO}});
  program.group = Program::Group::session;
  program.signals = Program::Signals::defaults;
  Child child = SPC_TRY(Child::start(program));
  writing.reset();
  const auto tell = [&](std::string_view text) {
    Report line{.kind = Report::line};
    line.size = text.copy(line.text, sizeof line.text);
    [[maybe_unused]] const auto sent = send_struct(report.get(), line);
  };
  // The socket's end is that of the waiting task.
  const PolledBeside task{
      .add =
          [&](auto& files) {
            files.push_back({report.get(), 0, 0});
          },
      .ready = [](std::span<const pollfd> files) { return files[0].revents == 0; }};
  UniqueFd none;
  return supervise(child, none, output, limits, tell, task);
}

/// The supervisor of the entrypoint's process: relays its output, enforces the time limit, and
/// kills leftovers.
[[noreturn]] void keep(Program program, const RunLimits& limits, UniqueFd report) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // adopt the processes that the entrypoint leaves behind
  ::setsid();
  // A signal to the step ends the waiting task, whose end in turn ends the entrypoint.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE}) ::signal(number, SIG_IGN);
  leave_only(report, program);
  UniqueFd output;
  const auto end = run_watched(program, limits, report, output);
  const bool good = end && end->good();
  if (!good) end_descendants(-1);
  Report last{.kind = end ? Report::ended : Report::not_executed};
  if (end) last.how = end->kind;
  last.number = end ? end->number : end.error().sys_errno();
  [[maybe_unused]] const auto sent = send_struct(report.get(), last);
  report.reset();
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(number, SIG_DFL);
  // The entrypoint's servers print into the pipe as long as they live, so it must be drained.
  ::fcntl(output.get(), F_SETFL, 0);
  char thrown_away[4096];
  while (good && ::read(output.get(), thrown_away, sizeof thrown_away) > 0) {
  }
  ::_exit(0);
}

}  // namespace

Result<ProcessEnd> run_process(Program program, std::chrono::seconds limit, const TellLine& tell) {
  auto line = SPC_TRY(socket_pair());
  const RunLimits limits{.time = limit,
                         .lines = INT_MAX - 1,
                         .line = kMostOfLine,
                         .splits = true,
                         .group = RunLimits::Group::left};
  // A grandchild, so that no process has to wait for the keeper, which lives as long as the servers
  // that the entrypoint has started.
  const auto begin = [&]() -> int {
    line.first.reset();
    keep(std::move(program), limits, std::move(line.second));
  };
  const auto leave_keeper = [&] {
    auto keeper = Child::run(begin, "keep the entrypoint", 0);
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
    if (report.kind == Report::ended) return ProcessEnd{report.how, report.number, {}};
    if (report.kind == Report::not_executed) return Error::from_errno(report.number, "execute");
    std::string text(report.text, std::min(report.size, sizeof report.text));
    std::erase(text, '\0');
    tell(text);
  }
}

// --- entrypoint ---

namespace {

constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kMostNotes = 16 << 20;
constexpr char kProbe[] = "container-helper";
constexpr char kHint[] = "--no-container-entrypoint runs the command without it";
constexpr int kWholeSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

constexpr std::array<std::string_view, 4> kOfEveryShell{"_", "SHLVL", "OLDPWD", "PWD"};
constexpr std::array<std::string_view, 8> kOfOneTask{
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "PMIX_RANK",
    "PMI_RANK",     "PMI_ID",        "RANK",           "LOCAL_RANK"};

template <typename List, typename Item>
bool is_in(const List& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Returns the bytes without an incomplete last record.
std::string_view whole_records(std::string_view bytes) {
  return bytes.substr(0, bytes.rfind('\0') + 1);
}

/// Looks the program up in the environment's PATH; returns `name` if it is not found.
std::string find_program(const std::string& name, const Environment& environment) {
  const auto path = environment.find("PATH");
  if (name.find('/') != std::string::npos || path == environment.end()) return name;
  for (const std::string_view directory : split(path->second.value, ':')) {
    const std::string program = std::string(directory.empty() ? "." : directory) + "/" + name;
    struct stat status {};
    if (::stat(program.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        ::access(program.c_str(), X_OK) == 0)
      return program;
  }
  return name;
}

/// Returns the entrypoint's environment: the image's variables, Slurm's, and those that the user
/// requests. Of the job's own variables it has only TERM, unless Apptainer's scripts are to add to
/// them. If it runs for all tasks, it has no variable that is valid for one task only. It never has
/// the PMI's descriptor.
Environment given_environment(const ContainerSpec& spec) {
  Environment environment = spec.environment;
  environment.erase("PMI_FD");
  constexpr std::array kOfJob{Origin::job, Origin::launch, Origin::mpi, Origin::gpu};
  if (spec.settings.environment_scripts.empty())
    std::erase_if(environment, [&](const auto& one) {
      return is_in(kOfJob, one.second.origin) && one.first != "TERM";
    });
  if (spec.entrypoint_mode == EntrypointMode::task) return environment;
  std::erase_if(environment,
                [](const auto& variable) { return is_in(kOfOneTask, variable.first); });
  return environment;
}

/// Returns the reason of a failure, or an empty text on success.
std::string failure_of(const Result<ProcessEnd>& end, const ContainerSpec& spec,
                       std::chrono::seconds limit, const std::string& last_line) {
  if (end && end->good()) return {};
  const bool is_script = !spec.settings.environment_scripts.empty();
  const std::string what =
      "run the image's " +
      (is_script ? "environment scripts" : "entrypoint " + in_quotes(spec.entrypoint[0]));
  auto error = end ? Error(ErrorKind::system, what + ": " + end->reason({.time = limit}, last_line))
                   : Error::from_errno(end.error().sys_errno(), what);
  return std::move(error).hint(kHint).message();
}

/// Sets or releases a lock. Only the process that has set a lock of this kind, or its end, releases
/// it; a fork does not inherit it.
bool lock(int file, short kind, int command) {
  struct flock whole {};
  whole.l_type = kind;
  whole.l_whence = SEEK_SET;
  int done = -1;
  do {
    done = ::fcntl(file, command, &whole);
  } while (done != 0 && errno == EINTR);
  return done == 0;
}

Result<EntrypointOutcome> wait_for_outcome(const UniqueFd& notes) {
  if (!notes) return Error(ErrorKind::internal, "wait for the image's entrypoint: no notes");
  if (!lock(notes.get(), F_RDLCK, F_SETLKW))
    return Error::from_errno(errno, "wait for the image's entrypoint");
  return EntrypointOutcome::parse(SPC_TRY(read_behind_notes(notes.get())));
}

std::string shown(std::string_view line) { return "entrypoint: " + printable(line); }

}  // namespace

EntrypointChanges EntrypointChanges::between(const Environment& given, std::string_view workdir,
                                             std::string_view found) {
  EntrypointChanges changes;
  const std::string_view ended = whole_records(found);
  const std::string_view directory = ended.substr(0, ended.find('\0'));
  if (ended.empty()) return changes;
  if (directory != workdir && directory.starts_with('/')) changes.workdir = directory;
  std::set<std::string, std::less<>> left;
  for (Records variable(ended.substr(directory.size() + 1)); variable.next();) {
    if (variable.key().empty()) continue;
    const std::string name(variable.key());
    left.insert(name);
    const auto before = given.find(name);
    const bool same = before != given.end() && before->second.value == variable.value();
    if (!same && !is_in(kOfEveryShell, name)) changes.set[name] = variable.value();
  }
  for (const auto& [name, variable] : given) {
    if (!left.contains(name) && is_shell_name(name) && !is_in(kOfEveryShell, name))
      changes.unset.insert(name);
  }
  return changes;
}

void apply(const EntrypointChanges& changes, const LaunchRequest& request, ContainerSpec& spec) {
  // An image's scripts only set its variables, while an entrypoint may fail on purpose.
  const bool is_image = !spec.settings.environment_scripts.empty();
  const Environment before = is_image ? spec.environment : Environment();
  const auto is_free = [&](const std::string& name) {
    const auto found = spec.environment.find(name);
    if (is_image && !image_counts(name, before)) return false;
    return found == spec.environment.end() ||
           (found->second.origin != Origin::kept && found->second.origin != Origin::option);
  };
  for (const auto& [name, value] : changes.set) {
    if (is_free(name)) spec.environment[name] = {value, Origin::entrypoint};
  }
  for (const std::string& name : changes.unset) {
    if (is_free(name)) spec.environment.erase(name);
  }
  if (changes.workdir.empty() || !request.workdir.empty()) return;
  spec.workdir = changes.workdir;
  if (is_free("PWD")) spec.environment["PWD"] = {changes.workdir, Origin::entrypoint};
}

std::string EntrypointOutcome::serialize() const {
  std::string records;
  const auto add = [&](std::string_view key, std::string_view value) {
    add_record(records, key, value);
  };
  for (const auto& [name, value] : changes.set) add("set", name + "=" + value);
  for (const std::string& name : changes.unset) add("unset", name);
  for (const std::string& line : output) add("output", line);
  add("workdir", changes.workdir);
  add("failure", failure);
  add("end", "");
  return records;
}

EntrypointOutcome EntrypointOutcome::parse(std::string_view records) {
  EntrypointOutcome outcome;
  for (Records record(whole_records(records)); record.next();) {
    const std::string_view key = record.key();
    const std::string value(record.value());
    if (key == "set" && value.find('=') != std::string::npos) {
      outcome.changes.set[value.substr(0, value.find('='))] = value.substr(value.find('=') + 1);
    }
    if (key == "unset") outcome.changes.unset.insert(value);
    if (key == "output") outcome.output.push_back(value);
    if (key == "workdir") outcome.changes.workdir = value;
    if (key == "failure") outcome.failure = value;
    if (key == "end") return outcome;
  }
  outcome.failure = "run the image's entrypoint: the task that ran it exited";
  return outcome;
}

Result<void> Entrypoint::run(const LaunchRequest& request, const SitePolicy& site,
                             const UniqueFd& notes, ContainerSpec& spec, Log& log) {
  mode_ = spec.entrypoint_mode;
  if (mode_ == EntrypointMode::no) return {};
  if (!probe_) {
    return Error::from_errno(no_probe_, "open " + in_quotes(own_program(kProbe)))
        .hint("install spank-container on this node");
  }
  limit_ = std::chrono::seconds(site.entrypoint_timeout);
  const EntrypointOutcome came = SPC_TRY(outcome(request, notes, spec, log));
  if (!came.failure.empty()) return Error(ErrorKind::system, came.failure);
  apply(came.changes, request, spec);
  return came.changes.workdir.empty() ? Result<void>() : enter_workdir(spec, request);
}

Result<EntrypointOutcome> Entrypoint::outcome(const LaunchRequest& request, const UniqueFd& notes,
                                              ContainerSpec& spec, Log& log) {
  EntrypointOutcome came;
  bool told = false;
  if (mode_ == EntrypointMode::node && !notes_) {
    came = SPC_TRY(wait_for_outcome(notes));
  } else if (!spec.entrypoint.empty()) {
    told = request.entrypoint_log;
    came = SPC_TRY(execute(spec, told ? &log : nullptr));
  }
  if (notes_) {
    SPC_TRY(write_all(notes_.get(), came.serialize()));
    notes_.reset();  // releases the lock
  }
  if (!told && (request.entrypoint_log || !came.failure.empty())) {
    for (const std::string& line : came.output) log.write(LogLevel::info, shown(line));
  }
  return came;
}

Result<EntrypointOutcome> Entrypoint::execute(const ContainerSpec& spec, Log* log) const {
  const Environment given = given_environment(spec);
  const UniqueFd found(
      ::memfd_create("spank-container environment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!found) return Error::from_errno(errno, "make a memory file");
  Program program{
      .path = find_program(spec.entrypoint[0], given),
      .arguments = spec.entrypoint,
      .environment = std::vector<std::string>(),
      .descriptors = {{probe_.get(), kProbeDescriptor}, {found.get(), kFoundDescriptor}}};
  program.arguments.push_back("/proc/self/fd/" + std::to_string(kProbeDescriptor));
  program.arguments.push_back(std::to_string(kFoundDescriptor));
  for (const auto& [name, variable] : given)
    program.environment->push_back(name + "=" + variable.value);

  EntrypointOutcome outcome;
  auto end = run_process(std::move(program), limit_, [&](std::string_view line) {
    if (log != nullptr) log->write(LogLevel::info, shown(line));
    if (outcome.output.size() == kKeptLines) outcome.output.erase(outcome.output.begin());
    outcome.output.emplace_back(line);
  });
  if (!end && end.error().sys_errno() == 0)
    return std::move(end).error().during("run the image's entrypoint");
  outcome.failure =
      failure_of(end, spec, limit_, outcome.output.empty() ? "" : outcome.output.back());
  if (outcome.failure.empty() && (::fcntl(found.get(), F_GET_SEALS) & kWholeSeals) == kWholeSeals) {
    outcome.changes = EntrypointChanges::between(given, spec.workdir,
                                                 SPC_TRY(read_file(found.get(), kMostNotes)));
  }
  return outcome;
}

}  // namespace spc
