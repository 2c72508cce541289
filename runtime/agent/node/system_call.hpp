#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// A system call that returns -1 on failure; `what` names action and object. `fine`: the errno of a
/// failure that does not matter.
inline Result<void> check(long answer, std::string_view what, int fine = 0) {
  if (answer == -1 && errno != fine) return Error::from_errno(errno, what);
  return {};
}

/// The same for one that returns a descriptor.
inline Result<UniqueFd> own(int descriptor, std::string_view what) {
  if (descriptor == -1) return Error::from_errno(errno, what);
  return UniqueFd(descriptor);
}

/// For *at calls only.
inline Result<UniqueFd> open_path(int parent, const std::string& name) {
  return own(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC),
             "open directory " + name);
}

/// The path with which an open file can be reopened or linked.
inline std::string itself(int file) { return "/proc/self/fd/" + std::to_string(file); }

/// Gives an open file a name.
inline Result<void> link_file(int file, int directory, const std::string& name, int fine) {
  return check(::linkat(AT_FDCWD, itself(file).c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW),
               "link " + name, fine);
}

/// The same in place of a file that has it, so that at no time there is none: linkat does not
/// replace, but renameat does. What somebody has left before who was killed between the two, or
/// stopped, takes the name first; `file` -1: does so, and no more.
inline Result<void> put_file(int file, int directory, const std::string& path) {
  const std::string next = std::string(path).insert(path.rfind('/') + 1, ".");
  Result<void> linked;
  do {
    if (file >= 0) linked = link_file(file, directory, next, 0);
    SPC_TRY(check(::renameat(directory, next.c_str(), directory, path.c_str()), "replace " + path,
                  ENOENT));
  } while (!linked && linked.error().sys_errno() == EEXIST);
  return linked;
}

/// Whether the other end was made by a process of this user.
inline bool peer_is(int socket, uid_t uid) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == uid;
}

}  // namespace spc::agent
