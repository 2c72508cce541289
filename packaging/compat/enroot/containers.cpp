#include "packaging/compat/enroot/containers.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>
#include <span>

#include "base/file.hpp"
#include "base/process/environment.hpp"
#include "base/unique_fd.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/containers/running.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::enroot {

// --- job containers ---

using namespace tool;

std::vector<JobContainer> job_containers() {
  const bool in_step = std::getenv("SLURMD_NODENAME") != nullptr;
  std::vector<JobContainer> containers;
  for (const OwnContainer& one : own_containers()) {
    if (in_step && one.node != this_node()) continue;
    const std::string name = "pyxis_" + (one.job.empty() ? "" : one.job + "_") + one.name;
    containers.push_back({.name = name,
                          .text = one.name,
                          .job = one.job,
                          .node = one.node,
                          .has_name = one.has_name,
                          .tasks = one.tasks});
  }
  return containers;
}

std::optional<JobContainer> job_container(const std::string& name) {
  for (JobContainer& one : job_containers()) {
    if (one.name == name) return std::move(one);
  }
  return std::nullopt;
}

std::optional<JobStep> step_named(const std::string& process) {
  const bool is_number =
      !process.empty() && std::ranges::all_of(process, [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number || process.size() > 9) return std::nullopt;
  return step_of_process(static_cast<pid_t>(std::stol(process)));
}

// --- containers ---

namespace {

Error invalid_argument(const std::string& text) {
  return Error(ErrorKind::invalid,
               "Invalid argument" + (text.empty() ? "" : ": " + printable(text)));
}

Error no_such_file(const std::string& path) {
  return Error(ErrorKind::not_found, "No such file or directory: " + printable(path));
}

Result<void> check_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
    return invalid_argument(name);
  return {};
}

Result<void> remove_tree(int parent, const char* name) {
  struct stat status {};
  if (::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return Error::from_errno(errno, "look at " + in_quotes(name));
  if (S_ISDIR(status.st_mode)) {
    // overlayfs leaves directories without any permission.
    if ((status.st_mode & 0700) != 0700 && ::fchmodat(parent, name, 0700, 0) != 0) {
      return Error::from_errno(errno, "enter " + in_quotes(name));
    }
    DirectoryReader entries(
        UniqueFd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)));
    while (entries.next()) SPC_TRY(remove_tree(entries.descriptor(), entries.c_name()));
    if (entries.error() != 0)
      return Error::from_errno(entries.error(), "read directory " + in_quotes(name));
  }
  if (::unlinkat(parent, name, S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0) != 0) {
    return Error::from_errno(errno, "remove " + in_quotes(name));
  }
  return {};
}

/// Copies by read and write: copy_file_range() does not cross file systems.
Result<void> copy_file(int from, int to) {
  std::vector<std::byte> buffer(1 << 20);
  for (;;) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the image");
    if (got == 0) return {};
    SPC_TRY_DURING("copy the image",
                   write_all(to, std::span(buffer).first(static_cast<std::size_t>(got))));
  }
}

}  // namespace

Result<EnrootContainer> find_container(const std::string& data_path, const std::string& name) {
  SPC_TRY(check_name(name));
  EnrootContainer container{.path = data_path + "/" + name, .image = {}, .changes = {}};
  struct stat status {};
  if (::stat(container.path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    return no_such_file(container.path);
  container.image = container.path + "/image.sqsh";
  if (is_squashfs(container.image)) {
    container.changes = container.path + "/changes";
  } else {
    container.image = container.path;
  }
  return container;
}

Result<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> found(::realpath(path.c_str(), nullptr), std::free);
  if (!found) return no_such_file(path);
  return std::string(found.get());
}

bool is_squashfs(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  char magic[4];
  return file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::pread(file.get(), magic, sizeof magic, 0) == sizeof magic &&
         std::memcmp(magic, "hsqs", sizeof magic) == 0;
}

Result<void> create_container(const std::string& data_path, const std::string& name, bool replace,
                              const std::function<Result<void>(const std::string&)>& put_image) {
  SPC_TRY(check_name(name));
  const std::string path = data_path + "/" + name;
  const bool there = ::access(path.c_str(), F_OK) == 0;
  if (there && !replace)
    return Error(ErrorKind::invalid, "File already exists: " + printable(path));
  SPC_TRY(make_directories(data_path));
  std::string unfinished = data_path + "/." + name + ".XXXXXX";
  if (::mkdtemp(unfinished.data()) == nullptr)
    return Error::from_errno(errno, "make a directory in " + in_quotes(data_path));
  auto put = put_image(unfinished + "/image.sqsh");
  if (put && there) put = remove_container(path);
  if (put && ::rename(unfinished.c_str(), path.c_str()) != 0)
    put = Error::from_errno(errno, "create " + in_quotes(path));
  if (!put) (void)remove_container(unfinished);
  return put;
}

Result<void> put_image_file(const std::string& image, const std::string& path) {
  const UniqueFd from(::open(image.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from) return Error::from_errno(errno, "open " + in_quotes(image));
  UniqueFd to(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!to) return Error::from_errno(errno, "create " + in_quotes(path));
  if (::ioctl(to.get(), FICLONE, from.get()) == 0) return {};
  const std::string other = path + ".link";
  if (::link(image.c_str(), other.c_str()) == 0) {
    if (::rename(other.c_str(), path.c_str()) == 0) return {};
    return Error::from_errno(errno, "create " + in_quotes(path));
  }
  return copy_file(from.get(), to.get());
}

Result<void> remove_container(const std::string& path) {
  auto removed = remove_tree(AT_FDCWD, path.c_str());
  if (!removed) return std::move(removed).error().during("remove " + in_quotes(path));
  return {};
}

Result<std::vector<std::string>> list_containers(const std::string& data_path) {
  std::vector<std::string> names;
  DirectoryReader entries(data_path);
  while (entries.next()) {
    if (!entries.name().starts_with('.')) names.emplace_back(entries.name());
  }
  if (entries.error() != 0 && entries.error() != ENOENT) {
    return Error::from_errno(entries.error(), "read " + in_quotes(data_path));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// --- processes ---

namespace {

using Row = std::array<std::string, 9>;

std::string file_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto text = file ? read_file(file.get(), 1 << 20) : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

/// Returns the number in `mnt:[4026531840]`.
std::string name_space(const std::string& process, const char* which) {
  std::array<char, 64> link{};
  const ssize_t size = ::readlink((process + "ns/" + which).c_str(), link.data(), link.size() - 1);
  const std::string text(link.data(), size < 0 ? 0U : static_cast<std::size_t>(size));
  const auto begin = text.find('[');
  return begin == std::string::npos ? "-" : text.substr(begin + 1, text.size() - begin - 2);
}

/// Formats an elapsed time as ps does: [[days-]hours:]minutes:seconds.
std::string elapsed(long seconds) {
  std::array<char, 64> text{};
  const long days = seconds / 86400;
  const long hours = seconds / 3600 % 24;
  const long minutes = seconds / 60 % 60;
  if (days > 0) {
    std::snprintf(text.data(), text.size(), "%ld-%02ld:%02ld:%02ld", days, hours, minutes,
                  seconds % 60);
  } else if (hours > 0) {
    std::snprintf(text.data(), text.size(), "%02ld:%02ld:%02ld", hours, minutes, seconds % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%02ld:%02ld", minutes, seconds % 60);
  }
  return text.data();
}

/// Returns the start as the time of day, or as the date if it is longer ago.
std::string started(std::time_t since, long seconds) {
  std::array<char, 64> text{};
  std::tm local{};
  ::localtime_r(&since, &local);
  return {text.data(),
          std::strftime(text.data(), text.size(), seconds < 86400 ? "%H:%M:%S" : "%b %d", &local)};
}

std::vector<RunningContainer> running_of_jobs() {
  std::vector<RunningContainer> running;
  for (const JobContainer& one : job_containers()) {
    for (const pid_t task : one.tasks)
      running.push_back({.name = one.name, .image = {}, .pid = task});
  }
  return running;
}

Row row_of(const RunningContainer& container) {
  const std::string process = "/proc/" + std::to_string(container.pid) + "/";
  std::string comm = file_of(process + "comm");
  while (!comm.empty() && comm.back() == '\n') comm.pop_back();
  std::string command = file_of(process + "cmdline");
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  // Fields follow the name, which may contain blanks and parentheses. State is field 3, the start
  // in ticks field 22.
  const std::string all = file_of(process + "stat");
  const auto name_end = all.rfind(')');
  std::string state = "-";
  unsigned long long ticks = 0;
  if (name_end != std::string::npos && name_end + 2 < all.size()) {
    state = all.substr(name_end + 2, 1);
    std::size_t at = name_end + 2;
    for (int field = 3; field < 22 && at != std::string::npos; ++field) at = all.find(' ', at + 1);
    if (at != std::string::npos) ticks = std::strtoull(all.c_str() + at, nullptr, 10);
  }
  std::timespec boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  const long seconds = std::max(
      0L,
      boot.tv_sec - static_cast<long>(ticks / static_cast<unsigned long>(::sysconf(_SC_CLK_TCK))));
  return {container.name,
          std::to_string(container.pid),
          comm,
          state,
          started(std::time(nullptr) - seconds, seconds),
          elapsed(seconds),
          name_space(process, "mnt"),
          name_space(process, "user"),
          command};
}

}  // namespace

Result<std::string> table_of(const std::vector<std::string>& names) {
  std::vector<Row> rows{
      {"NAME", "PID", "COMM", "STATE", "STARTED", "TIME", "MNTNS", "USERNS", "COMMAND"}};
  const auto places = SPC_TRY(Places::find());
  auto running = SPC_TRY(running_containers(places.running));
  std::ranges::move(running_of_jobs(), std::back_inserter(running));
  for (const auto& name : names) {
    const bool runs = std::any_of(running.begin(), running.end(),
                                  [&](const auto& one) { return one.name == name; });
    if (!runs) running.push_back({.name = name, .image = {}});
  }
  std::stable_sort(running.begin(), running.end(),
                   [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const auto& container : running) {
    rows.push_back(container.pid > 0 ? row_of(container) : Row{container.name});
  }
  std::array<std::size_t, 9> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    line.resize(line.find_last_not_of(' ') + 1);
    table += printable(line) + "\n";
  }
  return table;
}

}  // namespace spc::enroot
