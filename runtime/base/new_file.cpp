#include "base/new_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/format.hpp"

namespace spc {

namespace {

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

/// Returns a name that no other process uses, on this or another node.
std::string hidden_name(const std::string& name) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) < 0) number = static_cast<std::uint64_t>(::getpid());
  return "." + name + "." + std::to_string(number);
}

constexpr char kWhereItCanBe[] = "the directory must exist and be writable";

}  // namespace

Result<NewFile> NewFile::plan(const std::string& path, Replace replace) {
  const std::string step = "write " + in_quotes(path);
  struct stat status {};
  if (path.empty() || path.back() == '/')
    return Error(ErrorKind::invalid, step + ": is a directory");
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode))
      return Error(ErrorKind::invalid, step + ": is a directory").hint("name a file in it");
    if (!S_ISREG(status.st_mode))
      return Error(ErrorKind::invalid, step + ": not a regular file")
          .hint("name a new or existing file");
    if (replace == Replace::no)
      return Error(ErrorKind::refused, step + ": already exists")
          .hint("use --force to overwrite it");
  }
  NewFile file;
  file.shown_as_ = path;
  file.name_ = path.substr(path.rfind('/') + 1);
  file.replace_ = replace;
  file.directory_ = UniqueFd(::open(directory_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!file.directory_) return Error::from_errno(errno, step).hint(kWhereItCanBe);
  return file;
}

Result<void> NewFile::make() {
  const std::string step = "write " + in_quotes(shown_as_);
  file_ = UniqueFd(::openat(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0644));
  if (!file_ && (errno == EOPNOTSUPP || errno == EISDIR)) {
    hidden_ = hidden_name(name_);
    file_ = UniqueFd(::openat(directory_.get(), hidden_.c_str(),
                              O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    const int err = errno;
    if (!file_) hidden_.clear();
    errno = err;
  }
  if (!file_) return Error::from_errno(errno, step).hint(kWhereItCanBe);
  return {};
}

void NewFile::unmake() {
  if (!hidden_.empty()) ::unlinkat(directory_.get(), hidden_.c_str(), 0);
  hidden_.clear();
  file_.reset();
}

Result<NewFile> NewFile::create(const std::string& path, Replace replace) {
  auto file = SPC_TRY(plan(path, replace));
  SPC_TRY(file.make());
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : shown_as_(std::move(other.shown_as_)),
      directory_(std::move(other.directory_)),
      name_(std::move(other.name_)),
      hidden_(std::exchange(other.hidden_, {})),
      replace_(other.replace_),
      file_(std::move(other.file_)) {}

NewFile::~NewFile() { unmake(); }

Error NewFile::about(Error error) const {
  const int number = error.sys_errno();
  if (number != ENOSPC && number != EDQUOT) return error;
  struct statvfs system {};
  std::string why = number == EDQUOT ? "the quota is used up" : "its file system is full";
  if (number == ENOSPC && ::fstatvfs(directory_.get(), &system) == 0)
    why += formatted(" ({} MB in all)", system.f_blocks * system.f_frsize / 1'000'000);
  return Error(error.kind(), formatted("write {}: {}", in_quotes(shown_as_), why))
      .hint("name a file where there is more room");
}

Result<void> NewFile::publish() {
  const std::string step = "write " + in_quotes(shown_as_);
  if (::fsync(file_.get()) != 0) return Error::from_errno(errno, step);
  if (hidden_.empty()) {
    const std::string itself = "/proc/self/fd/" + std::to_string(file_.get());
    if (::linkat(AT_FDCWD, itself.c_str(), directory_.get(), name_.c_str(), AT_SYMLINK_FOLLOW) == 0)
      return {};
    if (errno != EEXIST || replace_ == Replace::no) return Error::from_errno(errno, step);
    hidden_ = hidden_name(name_);
    if (::linkat(AT_FDCWD, itself.c_str(), directory_.get(), hidden_.c_str(), AT_SYMLINK_FOLLOW) !=
        0)
      return Error::from_errno(errno, step);
  }
  // When not replacing, the kernel decides: another process may have created the file meanwhile.
  const unsigned flags = replace_ == Replace::no ? RENAME_NOREPLACE : 0U;
  if (::renameat2(directory_.get(), hidden_.c_str(), directory_.get(), name_.c_str(), flags) != 0)
    return Error::from_errno(errno, step);
  hidden_.clear();
  return {};
}

}  // namespace spc
