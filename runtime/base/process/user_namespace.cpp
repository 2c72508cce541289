#include "base/process/user_namespace.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/file.hpp"
#include "base/unique_fd.hpp"

namespace spc {
namespace {

Result<void> write_map(const char* path, const std::string& text) {
  const UniqueFd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "open " + in_quotes(path));
  return write_all(file.get(), text);
}

std::string line(RootMap map, unsigned id) {
  return std::to_string(map == RootMap::root ? 0 : id) + " " + std::to_string(id) + " 1";
}

}  // namespace

Result<void> enter_user_namespace(RootMap map) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return Error::from_errno(errno, "create a user namespace")
        .hint("run scontainer doctor for the reason");
  }
  // The kernel accepts a group map from an ordinary user only after setgroups is denied. The
  // supplementary groups stay.
  SPC_TRY(write_map("/proc/self/setgroups", "deny"));
  SPC_TRY(write_map("/proc/self/uid_map", line(map, uid)));
  SPC_TRY(write_map("/proc/self/gid_map", line(map, gid)));
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return Error::from_errno(errno, "make mounts private");
  return {};
}

}  // namespace spc
