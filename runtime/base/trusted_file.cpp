#include "base/trusted_file.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace spc {
namespace {

constexpr int kMostLinks = 40;  // the kernel's own limit

/// One way through the file system, a component at a time from /, so that what was checked is what
/// is opened: nobody but root or the owner can exchange anything in a directory that has passed.
class Walk {
 public:
  Walk(std::string about, uid_t owner) : about_(std::move(about)), owner_(owner) {}

  /// The way's end, O_PATH.
  Result<UniqueFd> to(const std::string& path) {
    std::string rest = path;
    SPC_TRY(start());
    for (int links = 0; !rest.empty();) {
      const auto begin = rest.find_first_not_of('/');
      if (begin == std::string::npos) break;
      const auto end = rest.find('/', begin);
      const std::string name = rest.substr(begin, end == std::string::npos ? end : end - begin);
      rest.erase(0, end);
      UniqueFd next(::openat(here_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      struct stat status {};
      if (!next || ::fstat(next.get(), &status) != 0) return Error::from_errno(errno, about_);
      const std::string shown = name_ + "/" + name;
      SPC_TRY(check(status, shown));
      if (S_ISLNK(status.st_mode)) {
        char target[PATH_MAX];
        const ssize_t size = ::readlinkat(next.get(), "", target, sizeof target);
        if (size <= 0 || ++links > kMostLinks)
          return Error::from_errno(size <= 0 ? errno : ELOOP, about_);
        rest = std::string(target, static_cast<std::size_t>(size)) + "/" + rest;
        if (target[0] == '/') SPC_TRY(start());
        continue;
      }
      here_ = std::move(next);
      name_ = shown;
    }
    return std::move(here_);
  }

 private:
  Result<void> start() {
    here_.reset(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    name_.clear();
    struct stat status {};
    if (!here_ || ::fstat(here_.get(), &status) != 0) return Error::from_errno(errno, about_);
    return check(status, "/");
  }

  [[nodiscard]] Result<void> check(const struct stat& status, const std::string& name) const {
    // A link's own mode says nothing: who can exchange it is a matter of its directory.
    const bool shared = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
    const bool writable =
        !S_ISLNK(status.st_mode) && !shared && (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    if ((status.st_uid == 0 || status.st_uid == owner_) && !writable) return {};
    const std::string which = S_ISDIR(status.st_mode) ? "directory " + in_quotes(name) + " " : "";
    if (writable) {
      return Error(ErrorKind::refused, about_ + ": " + which + "is writable by others")
          .hint("chmod go-w it");
    }
    return Error(ErrorKind::refused, about_ + ": " + which + "is not owned by root")
        .hint("chown root it");
  }

  std::string about_;
  uid_t owner_;
  UniqueFd here_;
  std::string name_;
};

Result<UniqueFd> open_trusted(const std::string& path, const std::string& what, uid_t owner,
                              mode_t type, int flags) {
  const std::string about = what + " " + in_quotes(path);
  const UniqueFd place = SPC_TRY(Walk(about, owner).to(path));
  struct stat status {};
  if (::fstat(place.get(), &status) != 0) return Error::from_errno(errno, about);
  if ((status.st_mode & S_IFMT) != type) {
    return Error(ErrorKind::refused,
                 about + (type == S_IFDIR ? ": is not a directory" : ": is not a file"));
  }
  // By the descriptor, where there is /proc; the way to it cannot have changed meanwhile.
  UniqueFd file(::open(("/proc/self/fd/" + std::to_string(place.get())).c_str(),
                       flags | O_RDONLY | O_CLOEXEC));
  if (!file) file.reset(::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, about);
  return file;
}

}  // namespace

Result<UniqueFd> open_trusted_file(const std::string& path, const std::string& what, uid_t owner) {
  return open_trusted(path, what, owner, S_IFREG, O_NOCTTY | O_NONBLOCK);
}

Result<UniqueFd> open_trusted_directory(const std::string& path, const std::string& what,
                                        uid_t owner) {
  return open_trusted(path, what, owner, S_IFDIR, O_DIRECTORY);
}

}  // namespace spc
