#include "base/file.hpp"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace spc {

// --- file ---

Result<void> write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> read_exactly(int fd, std::uint64_t at, std::span<std::byte> into, const char* step) {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd, into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error::from_errno(got < 0 ? errno : EIO, step);
    into = into.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

Result<std::string> read_file(int fd, std::size_t limit) {
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t got = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "read");
    }
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > limit)
      return Error(ErrorKind::invalid, "file is larger than " + std::to_string(limit) + " bytes");
  }
}

Result<UniqueFd> sealed_memory_file(const char* name, std::string_view bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Error::from_errno(errno, "create a memory file");
  SPC_TRY(write_all(fd.get(), bytes));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
      0) {
    return Error::from_errno(errno, "seal a memory file");
  }
  return fd;
}

UniqueFd open_resolved(int directory, const char* path, int flags, std::uint64_t resolve) {
  constexpr int kMostTimes = 100;
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = resolve;
  long file = -1;
  for (int times = 0; file < 0 && times < kMostTimes && (times == 0 || errno == EAGAIN); ++times)
    file = ::syscall(SYS_openat2, directory, path, &how, sizeof how);
  return UniqueFd(static_cast<int>(file));
}

// --- trusted file ---

namespace {

constexpr int kMostLinks = 40;  // the kernel's own limit

/// A walk through the file system, one component at a time from /, so that the checked file is the
/// opened file. Only root or the owner can exchange entries of a directory that has passed the
/// check.
class Walk {
 public:
  Walk(std::string about, uid_t owner) : about_(std::move(about)), owner_(owner) {}

  /// Returns the file at the end of the path, O_PATH.
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
    // A link's own mode has no meaning: the mode of its directory determines who can exchange the
    // link.
    const bool shared = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
    const bool writable =
        !S_ISLNK(status.st_mode) && !shared && (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    if ((status.st_uid == 0 || status.st_uid == owner_) && !writable) return {};
    const std::string which = S_ISDIR(status.st_mode) ? "directory " + in_quotes(name) + " " : "";
    if (writable) {
      return Error(ErrorKind::refused, about_ + ": " + which + "is writable by others")
          .hint("chmod go-w PATH");
    }
    return Error(ErrorKind::refused, about_ + ": " + which + "is not owned by root")
        .hint("chown root PATH");
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
  // Reopen by the descriptor where there is /proc. The path cannot have changed meanwhile.
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
