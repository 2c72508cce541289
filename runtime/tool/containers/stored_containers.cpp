#include "tool/containers/stored_containers.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/unique_fd.hpp"
#include "launch/sources/named_container.hpp"
#include "task/step_agent.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- stored containers ---

namespace {

constexpr char kContainers[] = SPC_STORE_DIR "/containers";
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

UniqueFd open_at(int parent, const char* name, int how) {
  return UniqueFd(::openat(parent, name, how | O_NOFOLLOW | O_CLOEXEC));
}

std::string path_of(const StoredContainer& container) {
  return formatted("{}/{}/{}", kContainers, container.uid, container.key);
}

std::optional<uid_t> uid_of(std::string_view name) {
  uid_t uid = 0;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), uid);
  return read.ec == std::errc{} && read.ptr == name.data() + name.size() ? std::optional(uid)
                                                                         : std::nullopt;
}

/// Acquires the container's lock, which each user of the container holds.
bool take_lock(const UniqueFd& lock, int how) {
  return lock && ::flock(lock.get(), how | LOCK_NB) == 0;
}

/// Returns the time of the last use. An agent touches the lock at the end of each use and creates a
/// socket beside it at the beginning.
std::int64_t last_use(int directory, int lock) {
  struct stat began {
  }, ended{};
  if (::fstat(directory, &began) != 0 || ::fstat(lock, &ended) != 0) return 0;
  return std::max(began.st_mtim.tv_sec, ended.st_mtim.tv_sec);
}

/// Returns an empty optional if no start of the container has reached its tasks.
std::optional<StoredContainer> read_container(int of_user, uid_t uid, const std::string& key) {
  constexpr std::size_t kMostNotes = 64 << 10;
  const UniqueFd directory = open_at(of_user, key.c_str(), kDirectory);
  const UniqueFd lock = open_at(directory.get(), "lock", O_RDONLY);
  const UniqueFd file = open_at(directory.get(), "is/notes", O_RDONLY | O_NONBLOCK);
  const auto text = file ? read_file(file.get(), kMostNotes) : Result<std::string>(std::string());
  if (!lock || (text && text->empty())) return std::nullopt;
  const auto notes = text ? ContainerNotes::parse(*text) : ContainerNotes();
  const auto dot = key.find('.');
  return StoredContainer{.uid = uid,
                         .key = key,
                         .name = notes.name,
                         .image = notes.image,
                         .job = dot == std::string::npos ? "" : key.substr(0, dot),
                         .used_at = last_use(directory.get(), lock.get()),
                         .in_use = !take_lock(lock, LOCK_SH)};
}

bool has_step(uid_t uid) {
  for (DirectoryReader sockets(SPC_RUN_DIR "/steps"); sockets.next();) {
    if (sockets.name().starts_with(std::to_string(uid) + ".")) return true;
  }
  return false;
}

/// Adds the directory and its content. The user may change it meanwhile. A file with several links
/// is counted in fractions, as all its links are in the container.
void add_size(UniqueFd directory, dev_t device, unsigned depth, ContainerSize& size) {
  constexpr unsigned kMostDepth = 500;  // each level keeps a descriptor open
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0 || status.st_dev != device) return;
  size.bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  DirectoryReader entries(std::move(directory));
  while (entries.next()) {
    if (::fstatat(entries.descriptor(), entries.c_name(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (!S_ISDIR(status.st_mode)) {
      size.bytes += static_cast<std::uint64_t>(status.st_blocks) * 512 /
                    std::max<nlink_t>(status.st_nlink, 1);
    } else if (depth == kMostDepth) {
      size.complete = false;
    } else {
      add_size(open_at(entries.descriptor(), entries.c_name(), kDirectory), device, depth + 1,
               size);
    }
  }
  if (entries.error() != 0) size.complete = false;
}

}  // namespace

Result<std::vector<StoredContainer>> stored_containers() {
  std::vector<StoredContainer> containers;
  DirectoryReader users(UniqueFd(::open(kContainers, kDirectory)));
  while (users.next()) {
    const auto uid = uid_of(users.name());
    if (!uid) continue;  // the trash directory
    for (DirectoryReader keys(open_at(users.descriptor(), users.c_name(), kDirectory));
         keys.next();) {
      auto container = read_container(keys.descriptor(), *uid, keys.c_name());
      if (container) containers.push_back(*std::move(container));
    }
  }
  if (users.error() == 0 || users.error() == ENOENT) return containers;
  return Error::from_errno(users.error(), formatted("read {}", in_quotes(kContainers)));
}

ContainerSize size_of(const StoredContainer& container) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ContainerSize size;
  const UniqueFd is(::open((path_of(container) + "/is").c_str(), kDirectory));
  struct stat status {};
  if (!is || ::fstat(is.get(), &status) != 0) return size;
  for (const char* part : {"up", "work"})
    add_size(open_at(is.get(), part, kDirectory), status.st_dev, 0, size);
  return size;
}

Result<std::vector<StoredContainer>> unused_containers(std::int64_t seconds) {
  auto containers = SPC_TRY(stored_containers());
  const std::int64_t now = std::time(nullptr);
  std::erase_if(containers, [&](const StoredContainer& one) {
    return one.in_use || one.used_at >= now - seconds || has_step(one.uid);
  });
  return containers;
}

Result<bool> remove_container(const StoredContainer& container, bool in_use) {
  const std::string path = path_of(container);
  const UniqueFd directory(::open(path.c_str(), kDirectory));
  if (!directory)
    return errno == ENOENT ? Result<bool>(false)
                           : Error::from_errno(errno, "open " + in_quotes(path));
  const UniqueFd lock = open_at(directory.get(), "lock", O_RDWR);
  const bool unused =
      take_lock(lock, LOCK_EX) && last_use(directory.get(), lock.get()) == container.used_at;
  if (!unused && !in_use) return false;
  // Without notes it is not a container, and the next process that acquires its lock discards it.
  if (::unlinkat(directory.get(), "is/notes", 0) == 0) return true;
  return Error::from_errno(errno, "remove " + in_quotes(path));
}

Result<void> remove_files_of(uid_t uid) {
  constexpr std::uint32_t kNoJob = 0;
  return run_agent("epilog", uid, kNoJob, "remove the files of containers");
}

// --- container verbs ---

namespace {

/// Node and job of the caller's container, where a step can reach it.
struct Place {
  std::string name, node, job;
};

Error ambiguous(const std::string& name, const std::string& places) {
  return Error(ErrorKind::invalid, formatted("several containers {}: {}", in_quotes(name), places));
}

/// Finds the container. One without a note may still be on this node if this is a Slurm node.
Result<Place> place_of(const ContainerMeant& meant) {
  std::vector<OwnContainer> found;
  std::string places;
  for (OwnContainer& one : own_containers()) {
    const bool elsewhere = (!meant.node.empty() && one.node != meant.node) ||
                           (!meant.job.empty() && one.job != meant.job);
    if (one.name != meant.name || !one.has_name || elsewhere) continue;
    if (meant.node.empty() && one.node == this_node() && one.job == meant.job)
      return Place{one.name, one.node, one.job};
    places +=
        (places.empty() ? "" : ", ") + one.node + (one.job.empty() ? "" : " of job " + one.job);
    found.push_back(std::move(one));
  }
  if (found.size() > 1)
    return ambiguous(meant.name, places).hint("choose one with --node=NODE or --job=JOB");
  if (found.size() == 1) return Place{found.front().name, found.front().node, found.front().job};
  if (!meant.node.empty()) return Place{meant.name, meant.node, meant.job};
  if (std::getenv("SLURMD_NODENAME") != nullptr) return Place{meant.name, this_node(), {}};
  return Error(ErrorKind::not_found, "no container " + in_quotes(meant.name))
      .hint("scontainer containers lists them");
}

/// Returns whether `text` (NAME, USER/NAME or UID/NAME) names the container.
bool is_meant(const StoredContainer& one, const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return one.name == text;
  const std::string user = text.substr(0, slash);
  const passwd* entry = ::getpwuid(one.uid);
  return one.name == text.substr(slash + 1) &&
         (user == std::to_string(one.uid) || (entry != nullptr && user == entry->pw_name));
}

Result<StoredContainer> stored_container(const ContainerMeant& meant) {
  std::vector<StoredContainer> found;
  std::string places;
  for (StoredContainer& one : SPC_TRY(stored_containers())) {
    if (!is_meant(one, meant.name)) continue;
    places += formatted("{}{}/{}", places.empty() ? "" : ", ", one.uid, one.name);
    found.push_back(std::move(one));
  }
  if (found.empty())
    return Error(ErrorKind::not_found, "no container " + in_quotes(meant.name))
        .hint("scontainer containers lists them");
  if (found.size() > 1) return ambiguous(meant.name, places).hint("choose one with USER/NAME");
  return std::move(found.front());
}

Result<int> remove_stored(const ContainerMeant& meant) {
  const auto container = SPC_TRY(stored_container(meant));
  if (container.in_use && !meant.force) {
    return Error(ErrorKind::refused,
                 formatted("remove container {}: it is in use", in_quotes(meant.name)))
        .hint("--force removes it; its steps go on");
  }
  if (!SPC_TRY(remove_container(container, meant.force))) {
    return Error(ErrorKind::unavailable,
                 formatted("remove container {}: it is in use", in_quotes(meant.name)));
  }
  SPC_TRY(remove_files_of(container.uid));
  return 0;
}

/// The user of the step owns the file: the container's user, even if root calls.
StepOrder order_of_export(const Place& place, const std::string& file) {
  return {.node = place.node,
          .job = place.job,
          .options = {"--container-name=" + place.name, "--container-save=" + file,
                      "--no-container-entrypoint"},
          .command = {"true"}};
}

}  // namespace

Result<int> remove_named(const ContainerMeant& meant) {
  if (::geteuid() == 0) return remove_stored(meant);
  const auto place = SPC_TRY(place_of(meant));
  return run_step({.node = place.node,
                   .job = place.job,
                   .options = {"--container-name=" + place.name + ":remove"},
                   .command = {"true"}});
}

Result<int> export_named(const ContainerMeant& meant, const std::string& file) {
  if (!meant.force && ::access(file.c_str(), F_OK) == 0) {
    return Error(ErrorKind::invalid, formatted("export to {}: it exists", in_quotes(file)))
        .hint("--force replaces it");
  }
  if (::geteuid() != 0) return run_step(order_of_export(SPC_TRY(place_of(meant)), file));
  const auto container = SPC_TRY(stored_container(meant));
  return run_step_as(container.uid,
                     order_of_export({container.name, this_node(), container.job}, file));
}

}  // namespace spc::tool
