#include "container/agent/setup.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.hpp"

namespace spc {
namespace {

/// A directory with exactly this owner and mode. An existing one must be a real directory of root or of that owner.
Result<void> ensure_directory(const char* path, uid_t uid, gid_t gid, mode_t mode) {
  if (::mkdir(path, 0700) != 0 && errno != EEXIST) return Error::from_errno(errno, "make directory " + quoted(path));
  const UniqueFd directory(::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open directory " + quoted(path));
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) return Error::from_errno(errno, "stat " + quoted(path));
  if (status.st_uid != 0 && status.st_uid != uid) {
    return Error(ErrorKind::refused, "use directory " + quoted(path) + ": it belongs to user " + std::to_string(status.st_uid))
        .hint("remove it or give it to root");
  }
  if (::fchown(directory.get(), uid, gid) != 0 || ::fchmod(directory.get(), mode) != 0) {
    return Error::from_errno(errno, "set owner and mode of " + quoted(path));
  }
  return {};
}

}  // namespace

Result<void> set_up_node(uid_t service_uid, gid_t service_gid) {
  SPC_TRY(ensure_directory(SPC_RUN_DIR, 0, 0, 0755));
  SPC_TRY(ensure_directory(SPC_STORE_DIR, 0, 0, 0755));
  SPC_TRY(ensure_directory(SPC_STORE_DIR "/layers", 0, 0, 0755));
  SPC_TRY(ensure_directory(SPC_STORE_DIR "/layers/sha256", 0, service_gid, 0750));
  SPC_TRY(ensure_directory(SPC_STORE_DIR "/images", service_uid, service_gid, 0700));
  SPC_TRY(ensure_directory(SPC_STORE_DIR "/refs", service_uid, service_gid, 0755));
  const UniqueFd locks(::open(SPC_STORE_DIR "/locks", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!locks) return Error::from_errno(errno, "create " + quoted(SPC_STORE_DIR "/locks"));
  if (::fchown(locks.get(), service_uid, service_gid) != 0) return Error::from_errno(errno, "set the owner of the lock file");
  return {};
}

}  // namespace spc
