#include "tool/containers/running.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {
namespace {

/// Returns the entries' prefix for this machine. Machines may share a home directory, but PIDs are
/// valid on one machine only.
std::string prefix_of_this_machine() {
  utsname machine{};
  ::uname(&machine);
  return std::string(machine.nodename) + ".";
}

/// Returns four lines: name, image, process, supervisor.
std::string serialize(const RunningContainer& container) {
  return container.name + "\n" + container.image + "\n" + std::to_string(container.pid) + "\n" +
         std::to_string(container.supervisor) + "\n";
}

RunningContainer parse(const std::string& text) {
  std::vector<std::string> lines(4);
  std::size_t at = 0;
  for (auto& line : lines) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    line = text.substr(at, end - at);
    at = std::min(end + 1, text.size());
  }
  return {.name = lines[0],
          .image = lines[1],
          .pid = std::atoi(lines[2].c_str()),
          .supervisor = std::atoi(lines[3].c_str())};
}

}  // namespace

Result<RunningEntry> RunningEntry::add(const std::string& directory,
                                       const RunningContainer& container) {
  SPC_TRY(make_directories(directory));
  const std::string path =
      directory + "/" + prefix_of_this_machine() + std::to_string(container.pid);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return Error::from_errno(errno, "note the container in " + in_quotes(path));
  SPC_TRY(write_all(file.get(), serialize(container)));
  return RunningEntry(path, std::move(file));
}

RunningEntry::~RunningEntry() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<std::vector<RunningContainer>> running_containers(const std::string& directory) {
  std::vector<RunningContainer> containers;
  const std::string prefix = prefix_of_this_machine();
  DirectoryReader entries(directory);
  while (entries.next()) {
    if (!entries.name().starts_with(prefix)) continue;
    const std::string path = directory + "/" + entries.c_name();
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file) continue;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlink(path.c_str());  // its owner was killed
      continue;
    }
    if (const auto text = read_file(file.get(), 64 << 10)) containers.push_back(parse(*text));
  }
  const int failed = entries.error();
  if (failed != 0 && failed != ENOENT)
    return Error::from_errno(failed, "read " + in_quotes(directory));
  return containers;
}

Result<RunningContainer> find_container(const std::string& directory, const std::string& text) {
  const auto all = SPC_TRY(running_containers(directory));
  std::string names;
  for (const RunningContainer& one : all) {
    if (one.name == text || std::to_string(one.pid) == text ||
        std::to_string(one.supervisor) == text)
      return one;
    names += formatted("{}{} ({})", names.empty() ? "" : ", ", printable(one.name), one.pid);
  }
  return Error(ErrorKind::not_found, "no running container " + in_quotes(text))
      .hint(names.empty() ? "start one with scontainer run" : "running containers: " + names);
}

// --- sandboxes ---

namespace sandboxes {

std::vector<std::string> stat_of(int proc, const std::string& pid) {
  const UniqueFd file(::openat(proc, (pid + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  const auto text = file ? read_file(file.get(), 4096) : Result<std::string>(std::string());
  std::vector<std::string> fields;
  if (!text || text->rfind(')') == std::string::npos) return fields;
  const std::string_view rest = std::string_view(*text).substr(text->rfind(')') + 1);
  for (const std::string_view field : split(trimmed(rest), ' ')) fields.emplace_back(field);
  return fields;
}

Process process_of(pid_t pid) {
  constexpr std::size_t kBegan = 19;  // field 22 of proc(5)
  const UniqueFd proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto fields = stat_of(proc.get(), std::to_string(pid));
  if (fields.size() <= kBegan || fields[0] == "Z") return {};
  return {pid, parse_number<std::uint64_t>(fields[kBegan]).value_or(0)};
}

bool is_running(const Process& process) {
  return process.pid > 0 && process_of(process.pid).began == process.began;
}

Process step_daemon() {
  const UniqueFd proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (std::getenv("SLURM_JOB_ID") == nullptr) return {};
  for (std::string pid = std::to_string(::getppid()); pid != "0" && pid != "1";) {
    const UniqueFd file(::openat(proc.get(), (pid + "/comm").c_str(), O_RDONLY | O_CLOEXEC));
    const auto name = file ? read_file(file.get(), 64) : Result<std::string>(std::string());
    if (name && name->starts_with("slurmstepd")) return process_of(std::atoi(pid.c_str()));
    const auto fields = stat_of(proc.get(), pid);
    if (fields.size() < 2) return {};
    pid = fields[1];
  }
  return {};
}

UniqueFd open_process(const Process& process) {
  UniqueFd file(process.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)) : -1);
  return file && is_running(process) ? std::move(file) : UniqueFd();
}

std::string job_of_caller() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return job == nullptr ? "" : job;
}

Result<std::string> state_directory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool has_runtime =
      runtime != nullptr && runtime[0] == '/' && ::access(runtime, W_OK | X_OK) == 0;
  const std::string path = has_runtime ? std::string(runtime) + "/spank-container"
                                       : "/tmp/spank-container-" + std::to_string(::geteuid());
  for (const char* part : {"/sandboxes", "/images", "/snapshots"})
    SPC_TRY(make_directories(path + part));
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return Error(ErrorKind::refused,
                 formatted("use {}: it is not a directory of this user alone", in_quotes(path)))
        .hint("set XDG_RUNTIME_DIR to a directory of yours");
  }
  return path;
}

Result<std::string> record_text(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "read " + in_quotes(path));
  return read_file(file.get(), 64 << 20);
}

Result<void> write_record(const std::string& path, const std::string& text) {
  const std::string made = formatted("{}.{}~", path, std::uint64_t(::getpid()));
  const UniqueFd file(
      ::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, "create " + in_quotes(made));
  SPC_TRY(write_all(file.get(), text));
  return check(::rename(made.c_str(), path.c_str()), "create " + in_quotes(path));
}

Result<UniqueFd> lock_record(const std::string& path) {
  for (;;) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file || ::flock(file.get(), LOCK_EX) != 0)
      return Error::from_errno(errno, "lock " + in_quotes(path));
    struct stat opened {};
    struct stat named {};
    if (::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino)
      return file;
  }
}

Json json_of(const Process& process) { return {{"pid", process.pid}, {"began", process.began}}; }

Process process_in(const Json& object) {
  const auto pid = object.number("pid");
  const auto began = object.number("began");
  if (!pid || !began) return {};
  return {static_cast<pid_t>(pid->value_or(0)), began->value_or(0)};
}

std::uint64_t number_in(const Json& object, const char* key) {
  const auto number = object.number(key);
  return number ? number->value_or(0) : 0;
}

std::string text_in(const Json& object, const char* key) {
  auto text = object.text(key);
  return text ? text->value_or("") : "";
}

bool is_name(std::string_view name) {
  constexpr std::size_t kMost = 64;
  return !name.empty() && name.size() <= kMost && name[0] != '.' && name[0] != '-' &&
         std::ranges::all_of(
             name, [](char c) { return is_shell_name_character(c) || c == '.' || c == '-'; });
}

Error no_sandbox(const std::string& name) {
  return Error(ErrorKind::not_found, "no sandbox " + in_quotes(name))
      .hint("scontainer sandbox list");
}

Result<Json> find_sandbox(const std::string& state, const std::string& name) {
  if (!is_name(name)) return no_sandbox(name);
  const auto text = record_text(state + "/sandboxes/" + name);
  if (!text) return no_sandbox(name);
  auto record = SPC_TRY(Json::parse(*text));
  if (record.find("image") == nullptr || !is_running(process_in(record))) return no_sandbox(name);
  return record;
}

namespace {

/// Returns whether the process that wrote this record, as `NAME.PID~`, was killed meanwhile.
bool is_unfinished(const std::string& name) {
  const auto dot = name.rfind('.');
  if (!name.ends_with('~') || dot == std::string::npos) return false;
  pid_t writer = 0;
  return read_number(std::string_view(name).substr(dot + 1, name.size() - dot - 2), writer) &&
         ::kill(writer, 0) != 0 && errno == ESRCH;
}

}  // namespace

Result<std::map<std::string, Json>> running_sandboxes(const std::string& state) {
  std::map<std::string, Json> all;
  DirectoryReader entries(state + "/sandboxes");
  while (entries.next()) {
    const std::string name(entries.name());
    const std::string path = formatted("{}/sandboxes/{}", state, name);
    const auto text = record_text(path);
    auto record = text ? Json::parse(*text) : Result<Json>(text.error());
    if (!record && !is_unfinished(name)) continue;  // being written
    if (!record || !is_running(process_in(*record))) {
      ::unlink(path.c_str());
    } else if (record->find("image") != nullptr) {
      all.emplace(name, *std::move(record));
    }
  }
  DirectoryReader images(state + "/images");
  while (images.next()) {
    const std::string path = formatted("{}/images/{}", state, images.name());
    if (is_unfinished(path)) ::unlink(path.c_str());
    if (path.ends_with(".lock") || path.ends_with("~")) continue;
    const auto text = record_text(path);
    const auto record =
        text ? Json::parse(text->substr(0, text->find('\n'))) : Result<Json>(text.error());
    if (!record || is_running(process_in(*record))) continue;
    ::unlink(path.c_str());
    ::unlink((path + ".lock").c_str());
  }
  return all;
}

std::vector<std::string> texts_in(const Json& record, const char* key) {
  std::vector<std::string> texts;
  if (const auto list = record.list(key)) {
    for (const Json& text : **list) texts.push_back(text.as_text());
  }
  return texts;
}

// --- files of sandboxes ---

namespace {

/// Copies the attributes of overlayfs and of users.
void copy_attributes(int from, int to) {
  std::array<char, 65536> names{};
  const ssize_t size = ::flistxattr(from, names.data(), names.size());
  std::string_view rest(names.data(), size < 0 ? 0U : static_cast<std::size_t>(size));
  while (!rest.empty()) {
    const std::string name(next_part(rest, '\0'));
    std::array<char, 65536> value{};
    const ssize_t bytes = ::fgetxattr(from, name.c_str(), value.data(), value.size());
    if (bytes >= 0) ::fsetxattr(to, name.c_str(), value.data(), static_cast<std::size_t>(bytes), 0);
  }
}

Result<void> copy_bytes(int from, int to) {
  constexpr std::size_t kPart = 64 << 20;
  for (;;) {
    const ssize_t sent = ::sendfile(to, from, nullptr, kPart);
    if (sent == 0) return {};
    if (sent < 0 && errno != EINTR) return Error::from_errno(errno, "copy a file");
  }
}

/// Copies the entry `name` of a writable layer, whiteouts included. Sockets are left out.
Result<void> copy_entry(int from, int to, const char* name) {
  struct stat status {};
  SPC_TRY(check(::fstatat(from, name, &status, AT_SYMLINK_NOFOLLOW), "stat " + in_quotes(name)));
  const std::string step = "copy " + in_quotes(name);
  const int flags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  if (S_ISDIR(status.st_mode)) {
    SPC_TRY(check(::mkdirat(to, name, 0700), step));
    const auto old = SPC_TRY(own(::openat(from, name, O_RDONLY | O_DIRECTORY | flags), step));
    const auto made = SPC_TRY(own(::openat(to, name, O_RDONLY | O_DIRECTORY | flags), step));
    SPC_TRY(copy_directory(old.get(), made.get()));
    copy_attributes(old.get(), made.get());
    ::fchmod(made.get(), status.st_mode & 07777);
  } else if (S_ISREG(status.st_mode)) {
    const auto old = SPC_TRY(own(::openat(from, name, O_RDONLY | flags), step));
    const auto made =
        SPC_TRY(own(::openat(to, name, O_WRONLY | O_CREAT | O_EXCL | flags, 0600), step));
    SPC_TRY_DURING(step, copy_bytes(old.get(), made.get()));
    copy_attributes(old.get(), made.get());
    ::fchmod(made.get(), status.st_mode & 07777);
  } else if (S_ISLNK(status.st_mode)) {
    std::array<char, PATH_MAX> target{};
    SPC_TRY(
        check(static_cast<int>(::readlinkat(from, name, target.data(), target.size() - 1)), step));
    SPC_TRY(check(::symlinkat(target.data(), to, name), step));
  } else if (!S_ISSOCK(status.st_mode)) {  // a whiteout is the character device 0, 0
    SPC_TRY(check(::mknodat(to, name, status.st_mode, status.st_rdev), step));
  }
  const timespec times[] = {status.st_atim, status.st_mtim};
  ::utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
  return {};
}

/// Opens the parent directory of `path` in the sandbox, or `path` itself if it is a directory, and
/// changes `name` to the file's name in it. Links do not lead out of the sandbox.
UniqueFd open_parent(int root, std::string path, std::string& name) {
  constexpr std::uint64_t kInside = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  UniqueFd directory = open_resolved(root, path.c_str(), O_PATH | O_DIRECTORY, kInside);
  if (directory) return directory;
  const auto slash = path.rfind('/');
  name = path.substr(slash + 1);
  path.resize(slash + 1);
  return open_resolved(root, path.c_str(), O_PATH | O_DIRECTORY, kInside);
}

}  // namespace

Result<void> copy_directory(int from, int to) {
  DirectoryReader entries(UniqueFd(::openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  while (entries.next()) SPC_TRY(copy_entry(from, to, entries.c_name()));
  if (entries.error() == 0) return {};
  return Error::from_errno(entries.error(), "read the changed files");
}

Result<void> copy_in(const std::string& source, int root, const std::string& target) {
  const auto from = SPC_TRY(
      own(::open(source.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), "open " + in_quotes(source)));
  struct stat status {};
  if (::fstat(from.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return Error(ErrorKind::invalid, in_quotes(source) + " is not a file")
        .hint("a directory: tar -c DIR | scontainer sandbox exec NAME tar -x");
  std::string name = source.substr(source.rfind('/') + 1);
  const auto parent =
      SPC_TRY(own(open_parent(root, target, name).release(), "open " + in_quotes(target)));
  const std::string made = formatted(".{}.{}~", name, std::uint64_t(::getpid()));
  const auto file =
      SPC_TRY(own(::openat(parent.get(), made.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600),
                  "create " + in_quotes(target)));
  auto copied = copy_bytes(from.get(), file.get());
  if (copied) copied = check(::fchmod(file.get(), status.st_mode & 0777), "set the mode");
  if (copied)
    copied = check(::renameat(parent.get(), made.c_str(), parent.get(), name.c_str()),
                   "create " + in_quotes(target));
  if (!copied) ::unlinkat(parent.get(), made.c_str(), 0);
  return copied;
}

Result<void> copy_out(int root, const std::string& source, std::string target) {
  // A device or pipe of the sandbox is not opened.
  const auto found = SPC_TRY(
      own(open_resolved(root, source.c_str(), O_PATH, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
              .release(),
          "open " + in_quotes(source)));
  struct stat status {};
  if (::fstat(found.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return Error(ErrorKind::invalid, in_quotes(source) + " is not a file")
        .hint("a directory: scontainer sandbox exec NAME tar -c DIR | tar -x");
  const auto from = SPC_TRY(
      own(::open(("/proc/self/fd/" + std::to_string(found.get())).c_str(), O_RDONLY | O_CLOEXEC),
          "open " + in_quotes(source)));
  struct stat directory {};
  if (::stat(target.c_str(), &directory) == 0 && S_ISDIR(directory.st_mode))
    target += "/" + source.substr(source.rfind('/') + 1);
  const auto to = SPC_TRY(
      own(::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, status.st_mode & 0777),
          "create " + in_quotes(target)));
  return copy_bytes(from.get(), to.get());
}

void remove_files(const std::string& path) {
  // Directories without permissions are the user's own.
  if (auto removal =
          Child::start({.path = "/bin/sh",
                        .arguments = {"sh", "-c", "chmod -R u+rwX \"$0\"; rm -rf \"$0\"", path},
                        .environment = {},
                        .descriptors = {}}))
    removal->wait();
}

}  // namespace sandboxes

}  // namespace spc::tool
