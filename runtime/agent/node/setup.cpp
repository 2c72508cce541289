#include "agent/node/setup.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "agent/node/system_call.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {
namespace {

/// A directory with exactly this owner and mode. An existing one, or what root's link leads to,
/// must be root's or of that owner.
Result<void> ensure_directory(const std::string& path, uid_t uid, gid_t gid, mode_t mode) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, "make directory " + quoted(path));
  const auto directory = SPC_TRY(own(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                     "open directory " + quoted(path)));
  struct stat status {};
  SPC_TRY(check(::fstat(directory.get(), &status), "stat " + quoted(path)));
  if (status.st_uid != 0 && status.st_uid != uid)
    return Error(ErrorKind::refused, "use directory " + quoted(path) + ": owned by user " +
                                         std::to_string(status.st_uid))
        .hint("remove it or chown it to root");
  SPC_TRY(check(::fchown(directory.get(), uid, gid), "set the owner of " + quoted(path)));
  return check(::fchmod(directory.get(), mode), "set the mode of " + quoted(path));
}

}  // namespace

Result<void> set_up_node(uid_t service_uid, gid_t service_gid) {
  for (const char* place : {SPC_RUN_DIR, SPC_STORE_DIR, SPC_STORE_DIR "/layers"})
    SPC_TRY(ensure_directory(place, 0, 0, 0755));
  for (const char* part : {store_layout::kLayers, store_layout::kGrants, store_layout::kRecords})
    SPC_TRY(ensure_directory(std::string(SPC_STORE_DIR "/") + part, 0, service_gid, 0750));
  SPC_TRY(ensure_directory(std::string(SPC_STORE_DIR "/") + store_layout::kNames, 0, 0, 0755));
  SPC_TRY(ensure_directory(std::string(SPC_STORE_DIR "/") + store_layout::kImages, service_uid,
                           service_gid, 0700));
  for (const char* place : {SPC_STORE_DIR "/containers", SPC_RUN_DIR "/steps"})
    SPC_TRY(ensure_directory(place, 0, 0, 0700));
  constexpr int kHow = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const auto locks =
      SPC_TRY(own(::open(SPC_STORE_DIR "/locks", kHow, 0600), "create the lock file of the store"));
  return check(::fchown(locks.get(), service_uid, service_gid), "set the owner of the lock file");
}

}  // namespace spc::agent
