#include "tool/containers/stored_containers.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <optional>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "launch/host/named_container.hpp"
#include "task/step_agent.hpp"

namespace spc::tool {
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

/// Whoever uses a container has its lock.
bool take_lock(const UniqueFd& lock, int how) {
  return lock && ::flock(lock.get(), how | LOCK_NB) == 0;
}

/// An agent touches the lock at the end of each use, and makes a socket beside it at the beginning.
std::int64_t last_use(int directory, int lock) {
  struct stat began {
  }, ended{};
  if (::fstat(directory, &began) != 0 || ::fstat(lock, &ended) != 0) return 0;
  return std::max(began.st_mtim.tv_sec, ended.st_mtim.tv_sec);
}

/// Empty: no start of it has got as far as its tasks.
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

/// Adds what is below, and the directory itself. Users may change it meanwhile. A file with several
/// names counts in parts: all its names are in the container.
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
    if (!uid) continue;  // the trash
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
  // Without notes it is none, and whoever has its lock next discards it.
  if (::unlinkat(directory.get(), "is/notes", 0) == 0) return true;
  return Error::from_errno(errno, "remove " + in_quotes(path));
}

Result<void> remove_files_of(uid_t uid) {
  constexpr std::uint32_t kNoJob = 0;
  return run_agent("epilog", uid, kNoJob, "remove the files of containers");
}

}  // namespace spc::tool
