#include "image/remote/kept_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <thread>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc {
namespace {

constexpr std::int64_t kDay = 86400;
constexpr std::int64_t kForgotten = 60 * kDay;
constexpr char kUnfinished[] = "unfinished";

std::string file_of(const std::string& text) { return Sha256::of(text).hex(); }

Result<void> make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return Error::from_errno(errno, "make directory " + in_quotes(path))
      .hint("set XDG_CACHE_HOME to a directory for fetched files");
}

}  // namespace

Result<KeptFiles> KeptFiles::open(const std::string& cache) {
  KeptFiles files;
  files.directory_ = cache + "/spank-container/files";
  for (const std::string& path :
       {cache, cache + "/spank-container", files.directory_, files.directory_ + "/names"}) {
    SPC_TRY(make_directory(path));
  }
  return files;
}

std::optional<std::string> KeptFiles::find(const Digest& digest) const {
  std::string path = directory_ + "/" + digest.hex();
  const timespec used[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW},
                           {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  if (::utimensat(AT_FDCWD, path.c_str(), used, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return path;
}

std::optional<NamedImage> KeptFiles::known(const std::string& text) const {
  auto named = read_named_image(AT_FDCWD, directory_ + "/names/" + file_of(text), ::geteuid());
  return named && named->name == file_of(text) && find(named->manifest) ? named : std::nullopt;
}

Result<void> KeptFiles::remember(const std::string& text, NamedImage named) const {
  named.name = file_of(text);
  auto file = SPC_TRY(NewFile::create(directory_ + "/names/" + named.name, Replace::yes));
  SPC_TRY(write_all(file.file(), named.str()));
  return file.publish();
}

Result<NewFile> KeptFiles::create() const {
  return NewFile::create(directory_ + "/" + kUnfinished, Replace::yes);
}

Result<std::string> KeptFiles::keep(NewFile& file, const Digest& digest) const {
  file.will_be(digest.hex());
  SPC_TRY(file.publish());
  return directory_ + "/" + digest.hex();
}

void KeptFiles::forget_old() const {
  const std::int64_t now = std::time(nullptr);
  for (const std::string& path : {directory_, directory_ + "/names"}) {
    for (DirectoryReader files(path); files.next();) {
      struct stat status {};
      if (::fstatat(files.descriptor(), files.c_name(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
          !S_ISREG(status.st_mode))
        continue;
      const std::int64_t age = now - std::max(status.st_atim.tv_sec, status.st_mtim.tv_sec);
      const bool is_unfinished = files.name().starts_with('.') && age > kDay;
      if (is_unfinished || age > kForgotten) ::unlinkat(files.descriptor(), files.c_name(), 0);
    }
  }
}

UniqueFd KeptFiles::lock_file(const std::string& text) const {
  const std::string path = directory_ + "/names/" + file_of(text) + ".lock";
  return UniqueFd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
}

FetchLock FetchLock::wait_for(const KeptFiles& files, const std::string& text,
                              std::chrono::seconds patience) {
  FetchLock lock;
  lock.file_ = files.lock_file(text);
  struct timespec said {};
  auto heard = std::chrono::steady_clock::now();
  while (lock.file_ && ::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    struct stat status {};
    const auto now = std::chrono::steady_clock::now();
    if (::fstat(lock.file_.get(), &status) != 0) break;
    if (status.st_mtim.tv_sec != said.tv_sec) heard = now;
    said = status.st_mtim;
    if (now - heard > patience) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  lock.goes_on();
  return lock;
}

void FetchLock::goes_on() const {
  const timespec now[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_NOW}};
  if (file_) ::futimens(file_.get(), now);
}

}  // namespace spc
