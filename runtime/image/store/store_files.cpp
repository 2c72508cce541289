#include "image/store/store_files.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

/// Held for the moment in which a file is replaced. Nobody waits for longer than a second: a user
/// may have stopped his step's import in that moment.
class DirectoryLock {
 public:
  explicit DirectoryLock(int directory) : directory_(directory) {
    for (int ms = 0; ms < 1000 && ::flock(directory_, LOCK_EX | LOCK_NB) != 0; ++ms)
      ::poll(nullptr, 0, 1);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() { ::flock(directory_, LOCK_UN); }

 private:
  int directory_;
};

}  // namespace

Result<std::optional<std::string>> read_named(int directory, const std::string& name,
                                              std::size_t limit) {
  const UniqueFd file(
      ::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<std::string>();
    return Error::from_errno(errno, formatted("open {} in the image store", in_quotes(name)));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::optional<std::string>();
  return std::optional(SPC_TRY_DURING("image store", read_file(file.get(), limit)));
}

Result<void> write_named(int directory, const std::string& name, std::string_view bytes,
                         Durable durable) {
  const std::string step = formatted("write {} into the image store", in_quotes(name));
  const UniqueFd file(::openat(directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0444));
  if (!file) return Error::from_errno(errno, step);
  SPC_TRY_DURING(step, write_all(file.get(), bytes));
  if (durable == Durable::yes && ::fsync(file.get()) != 0) return Error::from_errno(errno, step);
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  const auto link_as = [&](const std::string& as) {
    return ::linkat(AT_FDCWD, self.c_str(), directory, as.c_str(), AT_SYMLINK_FOLLOW);
  };
  if (link_as(name) == 0) return {};
  if (errno != EEXIST) return Error::from_errno(errno, step);
  // linkat does not replace: link under another name and rename. The lock makes that name ours, and
  // what a writer that was killed has left there as well. Of writers that did not get the lock, the
  // last one's file counts.
  const DirectoryLock lock(directory);
  const std::string next = "." + name.substr(0, 250);
  int failed = EEXIST;
  for (int attempt = 0; failed == EEXIST && attempt < 100; ++attempt) {
    ::unlinkat(directory, next.c_str(), 0);
    failed = link_as(next) == 0 ? 0 : errno;
  }
  if (failed == 0 && ::renameat(directory, next.c_str(), directory, name.c_str()) != 0 &&
      errno != ENOENT)
    failed = errno;
  return failed == 0 ? Result<void>() : Error::from_errno(failed, step);
}

Result<void> remove_named(int directory, const std::string& name) {
  ::unlinkat(directory, ("." + name).c_str(), 0);  // see write_named
  if (::unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return Error::from_errno(errno, formatted("remove {} from the image store", in_quotes(name)));
}

Result<UniqueFd> open_private_directory(int parent, const std::string& name) {
  const std::string step = formatted("open {} in the image store", in_quotes(name));
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, step);
  UniqueFd directory(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, step);
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) return Error::from_errno(errno, step);
  if (status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0) {
    return Error(ErrorKind::refused, step + ": must be owned by this user with mode 0700")
        .hint("remove it");
  }
  return directory;
}

Result<std::optional<std::string>> read_below(int parent, const std::string& directory,
                                              const std::string& name, std::size_t limit) {
  const UniqueFd below(
      ::openat(parent, directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (below) return read_named(below.get(), name, limit);
  if (errno == ENOENT) return std::optional<std::string>();
  return Error::from_errno(errno, formatted("open {} in the image store", in_quotes(directory)));
}

Result<std::vector<std::string>> names_in(int directory) {
  std::vector<std::string> names;
  DirectoryReader files(UniqueFd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  while (files.next()) {
    if (!files.name().starts_with('.')) names.emplace_back(files.name());
  }
  if (files.error() != 0) return Error::from_errno(files.error(), "list the image store");
  return names;
}

std::vector<std::string> names_left_in(int directory) {
  constexpr std::int64_t kMoment = 60;  // seconds: a writer has not been killed, but is not ready
  std::vector<std::string> names;
  for (DirectoryReader files(
           UniqueFd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
       files.next();) {
    const std::string name(files.name());
    struct stat status {};
    const bool is_left = name.starts_with('.') &&
                         ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                         S_ISREG(status.st_mode) &&
                         status.st_mtim.tv_sec < std::time(nullptr) - kMoment;
    if (is_left && ::faccessat(directory, name.c_str() + 1, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
      names.push_back(name.substr(1));
  }
  return names;
}

}  // namespace spc
