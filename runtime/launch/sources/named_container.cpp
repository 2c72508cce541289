// Named containers as the leader sees them: state and notes, the index in the user's home, and the
// checks of a joining step.

#include "launch/sources/named_container.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "reference/location.hpp"

namespace spc {

// --- container index ---

namespace {

std::string value_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

void make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1))
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  ::mkdir(path.c_str(), 0700);
}

}  // namespace

std::string directory_of_container_notes(const std::map<std::string, std::string>& environment) {
  const std::string data = value_of(environment, "XDG_DATA_HOME");
  const std::string home = value_of(environment, "HOME");
  if (data.starts_with('/')) return data + "/spank-container/named";
  return home.starts_with('/') && home != "/" ? home + "/.local/share/spank-container/named" : "";
}

std::vector<NotedContainer> noted_containers(const std::string& directory) {
  constexpr std::size_t kMostNotes = 64 << 10;
  std::vector<NotedContainer> containers;
  for (DirectoryReader entries(directory); entries.next();) {
    const UniqueFd file(::openat(entries.descriptor(), entries.c_name(),
                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto text = read_file(file.get(), kMostNotes);
    if (!text) continue;
    NotedContainer one{.notes = ContainerNotes::parse(*text),
                       .node = {},
                       .job = {},
                       .made_at = status.st_mtim.tv_sec,
                       .steps = {},
                       .path = {}};
    for (Records record(*text); record.next();) {
      if (record.key() == "node") one.node = record.value();
      if (record.key() == "job") one.job = record.value();
      if (record.key() == "step") one.steps.emplace_back(record.value());
    }
    one.path = directory + "/" + entries.c_name();
    if (!one.notes.name.empty() && !one.node.empty()) containers.push_back(std::move(one));
  }
  return containers;
}

std::string other_nodes_with(const ContainerName& name, bool of_job,
                             const std::map<std::string, std::string>& environment) {
  constexpr std::size_t kMost = 4;
  const std::string own = value_of(environment, "SLURMD_NODENAME");
  const std::string job = of_job ? value_of(environment, "SLURM_JOB_ID") : "";
  std::vector<std::string> nodes;
  for (const NotedContainer& one : noted_containers(directory_of_container_notes(environment))) {
    if (one.notes.name == name.text && one.job == job && one.node != own)
      nodes.push_back(printable(one.node));
  }
  std::ranges::sort(nodes);
  if (nodes.size() > kMost) nodes.resize(kMost);
  return joined(nodes, ",");
}

ContainerNote ContainerNote::open(const ContainerName& name, bool of_job,
                                  const std::map<std::string, std::string>& environment) {
  ContainerNote note;
  const std::string node = value_of(environment, "SLURMD_NODENAME");
  const std::string job = of_job ? value_of(environment, "SLURM_JOB_ID") : "";
  const std::string directory = directory_of_container_notes(environment);
  if (directory.empty() || node.empty() || node.find('/') != std::string::npos) return note;
  make_directories(directory);
  note.directory_.reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  note.file_ =
      formatted("{}.{}{}{}", node, job, job.empty() ? "" : ".", name.key().hex().substr(0, 32));
  add_record(note.place_, "node", node);
  if (!job.empty()) add_record(note.place_, "job", job);
  return note;
}

void ContainerNote::write(const ContainerNotes& notes, bool is_new) const {
  if (!directory_ || notes.name.empty()) return;
  const int how =
      O_WRONLY | O_CREAT | (is_new ? O_TRUNC : O_EXCL) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const UniqueFd file(::openat(directory_.get(), file_.c_str(), how, 0600));
  if (file) [[maybe_unused]]
    const auto written = write_all(file.get(), notes.serialize() + place_);
}

void ContainerNote::add_step(const ContainerNotes& notes, const std::string& step,
                             bool joins) const {
  constexpr off_t kMost = 32 << 10;  // of 64 KiB that are read
  const int how = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const UniqueFd file(directory_ ? ::openat(directory_.get(), file_.c_str(), how) : -1);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (joins && status.st_size > kMost) return;
  std::string text = joins ? "" : notes.serialize() + place_;
  add_record(text, "step", step);
  if (!joins && ::ftruncate(file.get(), 0) != 0) return;
  [[maybe_unused]] const auto written = write_all(file.get(), text);
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, status.st_mtim};
  ::futimens(file.get(), times);  // when the container was made
}

void ContainerNote::remove() const {
  if (directory_) ::unlinkat(directory_.get(), file_.c_str(), 0);
}

// --- named container ---

namespace {

std::string flag_error(const char* flag, const ContainerName& name, const char* but) {
  return formatted("--container-name: {}: the container {} {}", flag, in_quotes(name.text), but);
}

/// Checks the full name: two names may have the same key.
Result<void> has_this_name(const ContainerName& name, const ContainerNotes& notes) {
  if (notes.name.empty() || notes.name == name.text) return {};
  return Error(ErrorKind::refused, formatted("--container-name: {} conflicts with {}",
                                             in_quotes(name.text), in_quotes(notes.name)))
      .hint("choose another name");
}

}  // namespace

ContainerNotes ContainerNotes::parse(std::string_view records) {
  ContainerNotes notes;
  for (Records record(records); record.next();) {
    const std::string_view key = record.key();
    const std::string_view value = record.value();
    if (key == "name") notes.name = value;
    if (key == "image") notes.image = value;
    if (key == "digest") notes.digest = value;
    if (key == "file") notes.file = value;
    if (key == "maker") notes.maker = value;
    if (key == "made") notes.made_at = std::atoll(std::string(value).c_str());
  }
  return notes;
}

std::string ContainerNotes::serialize() const {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) add_record(text, key, value);
  };
  add("name", name);
  add("image", image);
  add("digest", digest);
  add("file", file);
  add("maker", maker);
  add("made", made_at == 0 ? "" : std::to_string(made_at));
  return text;
}

std::string file_identity(int file, FileKind kind) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return {};
  if (kind == FileKind::brought) return "brought:" + std::to_string(status.st_size);
  std::string text = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  // A modified file is a different image. A directory may be modified.
  if (S_ISREG(status.st_mode)) {
    text += ":" + std::to_string(status.st_size) + ":" + std::to_string(status.st_mtim.tv_sec) +
            "." + std::to_string(status.st_mtim.tv_nsec);
  }
  return text;
}

std::string known_as(const ImageLocation& location) {
  if (location.kind == ImageLocation::Kind::remote_file)
    return name_without_secrets(location.reference);
  if (location.kind != ImageLocation::Kind::path) return location.canonical();
  char absolute[PATH_MAX];
  return ::realpath(location.path.c_str(), absolute) != nullptr ? absolute : location.path;
}

Result<NamePlan> plan_for(const ContainerName& name, std::uint32_t state,
                          const ContainerNotes& notes, const WantedImage& wanted) {
  using Use = ContainerName::Use;
  const bool running = state == TaskMessage::named_running;
  const bool exists = running || state == TaskMessage::named_stored;
  SPC_TRY(has_this_name(name, notes));
  if (name.use == Use::create && exists) {
    return Error(ErrorKind::refused,
                 flag_error("\"create\" flag was passed", name, "already exists"));
  }
  if (name.use == Use::exec && !running) {
    return Error(ErrorKind::not_found,
                 flag_error("\"exec\" flag was passed", name, "is not running"));
  }
  if (name.use == Use::no_exec && running) {
    return Error(ErrorKind::refused, flag_error("\"no_exec\" flag was passed", name, "is running"))
        .hint("drop :no_exec to join it");
  }
  if (name.use == Use::replace && running) {
    return Error(ErrorKind::refused, flag_error("\"replace\" flag was passed", name, "is running"));
  }
  if (name.use == Use::replace && wanted.image.empty()) {
    return Error(ErrorKind::invalid,
                 "--container-name: \"replace\" flag was passed, and --container-image is not set");
  }
  if (!exists) {
    if (!wanted.image.empty() && name.step_key()) {
      return Error(
                 ErrorKind::invalid,
                 formatted("--container-name: {} has the form JOB.STEP, which names the container "
                           "of a running step",
                           in_quotes(name.text)))
          .hint(formatted("--container-name=job-{}", name.text));
    }
    if (!wanted.image.empty()) return NamePlan::make;
    return Error(
        ErrorKind::not_found,
        formatted("a container with name {} does not exist, and --container-image is not set",
                  in_quotes(name.text)));
  }
  const bool same = wanted.image.empty() || notes.image.empty() || wanted.image == notes.image ||
                    (!notes.digest.empty() && wanted.digest == notes.digest);
  if (!same) {
    return Error(ErrorKind::refused,
                 formatted("--container-name: the container {} was made from {}, not from {}",
                           in_quotes(name.text), in_quotes(notes.image), in_quotes(wanted.image)))
        .hint(formatted("--container-name={}:replace recreates it", name.text));
  }
  return running ? NamePlan::join : NamePlan::reuse;
}

Result<void> NamedStart::ask(const ContainerName& name, const std::string& job, bool of_job,
                             int agent) {
  name_ = name;
  job_ = job;
  of_job_ = of_job;
  asked_for_step_ = name.step_key().has_value();
  return send(agent);
}

Result<void> NamedStart::send(int agent) const {
  TaskMessage message;
  message.kind = TaskMessageKind::name;
  message.container = asked_for_step_ ? *name_.step_key() : name_.key();
  if (asked_for_step_) message.name_flags |= TaskMessage::name_of_step;
  if (of_job_) message.name_flags |= TaskMessage::name_of_job;
  if (name_.use == ContainerName::Use::replace) message.name_flags |= TaskMessage::name_replace;
  return send_struct(agent, message);
}

Result<bool> NamedStart::take_answer(const TaskMessage& answer, std::vector<UniqueFd> notes,
                                     int agent) {
  if (asked_for_step_ && answer.named_state == TaskMessage::named_new) {
    asked_for_step_ = false;
    SPC_TRY(send(agent));
    return false;
  }
  state_ = answer.named_state;
  running_ = {answer.namespaces, (answer.start_flags & TaskMessage::start_read_only) != 0,
              answer.upper_size};
  if (notes.size() == 1) file_ = std::move(notes.front());
  constexpr std::size_t kSane = 64 << 10;
  if (file_)
    notes_ = ContainerNotes::parse(
        SPC_TRY_DURING("read the container's notes", read_file(file_.get(), kSane)));
  if (asked_for_step_) notes_.name.clear();  // the step's container may have its own name
  return true;
}

Result<void> NamedStart::decide(const WantedImage& wanted) {
  if (state_ == TaskMessage::named_running && !asked_for_step_ && notes_.name.empty()) {
    return Error(ErrorKind::refused,
                 formatted("--container-name: the container {} was removed, and is still running",
                           in_quotes(name_.text)))
        .hint("run this step again: the name is free now");
  }
  plan_ = SPC_TRY(plan_for(name_, state_, notes_, wanted));
  return {};
}

void NamedStart::will_be(const std::string& image, const std::string& file) {
  fresh_ = true;
  notes_ = ContainerNotes{.name = name_.text,
                          .image = image,
                          .digest = {},
                          .file = file,
                          .maker = job_,
                          .made_at = std::time(nullptr)};
}

std::string NamedStart::origin() const {
  if (plan_ == NamePlan::make || asked_for_step_ || notes_.maker.empty() || notes_.maker == job_)
    return {};
  const std::int64_t age = std::max<std::int64_t>(0, std::time(nullptr) - notes_.made_at);
  struct Unit {
    std::int64_t seconds, up_to;
    const char* name;
  };
  constexpr Unit kUnits[] = {
      {1, 120, "s"}, {60, 7200, "min"}, {3600, 172'800, "h"}, {86'400, INT64_MAX, "days"}};
  const auto unit = std::ranges::find_if(kUnits, [&](const Unit& one) { return age < one.up_to; });
  return formatted("using container {} of job {}, made {} {} ago", in_quotes(name_.text),
                   printable(notes_.maker), age / unit->seconds, unit->name);
}

Result<void> NamedStart::must_be_the_same(const std::string& file) const {
  if (file == notes_.file) return {};
  return Error(ErrorKind::refused,
               formatted("--container-name: {}, which the container {} was made from, has changed",
                         in_quotes(notes_.image), in_quotes(name_.text)))
      .hint(
          formatted("--container-name={}:replace with --container-image recreates it", name_.text));
}

Result<void> NamedStart::write(const Digest& manifest) {
  if (!fresh_) return {};
  if (manifest != Digest()) notes_.digest = manifest.str();
  SPC_TRY_DURING("write the container's notes", write_all(file_.get(), notes_.serialize()));
  return {};
}

void NamedStart::take_back() {
  if (fresh_) [[maybe_unused]]
    const int emptied = ::ftruncate(file_.get(), 0);
}

Result<void> NamedStart::remove() {
  const bool exists = state_ != TaskMessage::named_new && !notes_.name.empty();
  if (!exists)
    return Error(ErrorKind::not_found,
                 flag_error("\"remove\" flag was passed", name_, "does not exist"));
  SPC_TRY(has_this_name(name_, notes_));
  if (::ftruncate(file_.get(), 0) == 0) return {};
  return Error::from_errno(errno, "remove the container " + in_quotes(name_.text));
}

// --- join check ---

namespace {

Error differs(const char* option, const std::string& container, const std::string& how) {
  return Error(ErrorKind::refused,
               formatted("--{}: the container {} {}", option, in_quotes(container), how))
      .hint("use it in its first step");
}

/// Checks the namespaces. The text after "separate" is pyxis's.
Result<void> check_namespaces(std::uint32_t asked, std::uint32_t has,
                              const std::string& container) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 5> kNames{{{own_net, "network"},
                                                                         {own_ipc, "IPC"},
                                                                         {own_uts, "UTS"},
                                                                         {own_pid, "PID"},
                                                                         {own_cgroup, "cgroup"}}};
  for (const auto& [bit, name] : kNames) {
    if ((asked & ~has & bit) == 0) continue;
    return differs("container-unshare", container,
                   formatted("is not in a separate {} namespace", name));
  }
  return {};
}

Result<void> check_root(bool asked, bool has, const std::string& container) {
  if (asked == has || ::geteuid() == 0) return {};
  return asked ? differs("container-remap-root", container, "does not have remapped root")
               : differs("no-container-remap-root", container, "has remapped root");
}

Result<void> check_writable(bool asked, bool has, const std::string& container) {
  if (asked == has) return {};
  return asked ? differs("container-writable", container, "is read-only")
               : differs("container-readonly", container, "is writable");
}

}  // namespace

Result<void> check_join(const LaunchRequest& asked, const NamedStart& named,
                        std::uint64_t upper_size, Log& log) {
  const NamedStart::Running& running = named.running();
  const std::string& container = asked.name->text;
  SPC_TRY(check_namespaces(asked.namespaces, running.namespaces, container));
  if (asked.remap_root)
    SPC_TRY(check_root(*asked.remap_root, (running.namespaces & own_user) != 0, container));
  if (asked.writable) SPC_TRY(check_writable(*asked.writable, !running.read_only, container));
  if (asked.tmpfs_size && upper_size != running.upper_size) {
    return differs("container-tmpfs-size", container,
                   formatted("has a limit of {} bytes", running.upper_size));
  }
  const std::array<std::pair<bool, const char*>, 8> unknown{
      {{asked.contain, "container-contain"},
       {asked.mount_home == false, "no-container-mount-home"},
       {!asked.devices.empty(), "container-device"},
       {std::ranges::find(asked.features, "container-ssh") != asked.features.end(),
        "container-ssh"},
       {asked.gpu == true, "container-gpu"},
       {asked.gpu == false, "no-container-gpu"},
       {!asked.mpi.empty(), "container-mpi"},
       {asked.platform.has_value(), "container-platform"}}};
  for (const auto& [is_asked, option] : unknown) {
    if (!is_asked) continue;
    log.write(LogLevel::warning,
              formatted("--{} does not change the container {}, which runs already "
                        "(hint: use it in its first step)",
                        option, in_quotes(container)));
  }
  return {};
}

}  // namespace spc
