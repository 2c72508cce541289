#include "launch/inside/entrypoint.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "base/records.hpp"
#include "base/text.hpp"
#include "launch/inside/entrypoint_process.hpp"
#include "launch/inside/task_notes.hpp"

namespace spc {
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

/// Without one whose writer has not come to its end.
std::string_view whole_records(std::string_view bytes) {
  return bytes.substr(0, bytes.rfind('\0') + 1);
}

/// Where the environment's PATH leads; the name itself if nowhere.
std::string find_program(const std::string& name, const Environment& environment) {
  const auto path = environment.find("PATH");
  if (name.find('/') != std::string::npos || path == environment.end()) return name;
  for (std::size_t at = 0; at <= path->second.value.size();) {
    const std::size_t end = std::min(path->second.value.find(':', at), path->second.value.size());
    const std::string directory = path->second.value.substr(at, end - at);
    const std::string program = (directory.empty() ? "." : directory) + "/" + name;
    struct stat status {};
    if (::stat(program.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        ::access(program.c_str(), X_OK) == 0)
      return program;
    at = end + 1;
  }
  return name;
}

/// What it is given: the image's, with what Slurm says and the user has asked for; of the job's own
/// nothing but the terminal, unless Apptainer's scripts are to add to it. No variable that is right
/// for one task only if it runs for all, and no descriptor of the PMI.
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

/// Why it counts as failed; empty: it does not.
std::string failure_of(const EntrypointEnd& end, const ContainerSpec& spec,
                       std::chrono::seconds limit, const std::string& last_line) {
  using Kind = EntrypointEnd::Kind;
  const bool is_script = !spec.settings.environment_scripts.empty();
  const std::string what =
      "run the image's " +
      (is_script ? "environment scripts" : "entrypoint " + in_quotes(spec.entrypoint[0]));
  std::string why;
  switch (end.kind) {
    case Kind::exited:
      if (end.number == 0) return {};
      why = "exited with status " + std::to_string(end.number);
      break;
    case Kind::signalled: why = "was killed by signal " + std::to_string(end.number); break;
    case Kind::timed_out:
      why = "did not finish within " + std::to_string(limit.count()) + " s";
      break;
    case Kind::not_executed: return Error::from_errno(end.number, what).hint(kHint).message();
  }
  if (!last_line.empty()) why += "; last output: " + in_quotes(last_line);
  return Error(ErrorKind::system, what + ": " + why).hint(kHint).message();
}

/// Only the process that has set a lock of this kind, or its end, undoes it; a fork has nothing to
/// do with it.
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
  // An image's scripts only say what its variables are, where an entrypoint may have its reasons.
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
    notes_.reset();  // with it goes the lock
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
  EntrypointProcess process;
  process.program = find_program(spec.entrypoint[0], given);
  process.arguments = spec.entrypoint;
  process.arguments.push_back("/proc/self/fd/" + std::to_string(kProbeDescriptor));
  process.arguments.push_back(std::to_string(kFoundDescriptor));
  for (const auto& [name, variable] : given)
    process.environment.push_back(name + "=" + variable.value);
  process.probe = probe_.get();
  process.found = found.get();
  process.limit = limit_;

  EntrypointOutcome outcome;
  const auto end =
      SPC_TRY_DURING("run the image's entrypoint", run_process(process, [&](std::string_view line) {
                       if (log != nullptr) log->write(LogLevel::info, shown(line));
                       if (outcome.output.size() == kKeptLines)
                         outcome.output.erase(outcome.output.begin());
                       outcome.output.emplace_back(line);
                     }));
  outcome.failure =
      failure_of(end, spec, limit_, outcome.output.empty() ? "" : outcome.output.back());
  if (outcome.failure.empty() && (::fcntl(found.get(), F_GET_SEALS) & kWholeSeals) == kWholeSeals) {
    outcome.changes = EntrypointChanges::between(given, spec.workdir,
                                                 SPC_TRY(read_file(found.get(), kMostNotes)));
  }
  return outcome;
}

}  // namespace spc
