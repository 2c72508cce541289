#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/system_call.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

// --- system call ---

/// Opens with O_PATH, for *at calls only.
inline Result<UniqueFd> open_path(int parent, const std::string& name) {
  return own(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC),
             "open directory " + name);
}

/// Returns the path with which an open file can be reopened or linked.
inline std::string itself(int file) { return "/proc/self/fd/" + std::to_string(file); }

/// Links an open file at this name.
inline Result<void> link_file(int file, int directory, const std::string& name, int fine) {
  return check(::linkat(AT_FDCWD, itself(file).c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW),
               "link " + name, fine);
}

/// Replaces the file at `path` without a moment in which none exists: linkat does not replace, but
/// renameat does. Removes a stale temporary name of a killed or stopped process first. With `file`
/// == -1, does only that.
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

/// Returns whether a process of root created the other end.
inline bool peer_is_root(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0;
}

// --- privilege ---

/// Reduces the process and its bounding set permanently to the capabilities that agent and builder
/// need: SYS_ADMIN (mounts, namespaces), SYS_CHROOT (setns of a mount namespace), SETUID and SETGID
/// (children, id map), KILL, and DAC_OVERRIDE, CHOWN, FOWNER, FSETID, SETFCAP: overlayfs uses the
/// mounter's credentials for every later write in the container. Keeps the supplementary groups,
/// which are the job's. Sets no_new_privs, and forbids tracing and reading of its memory.
Result<void> keep_needed_privileges();

/// Makes the kernel kill the calling child with its parent, even if the parent has just ended. A
/// change of IDs clears this setting.
void stay_with(pid_t parent);

/// Forks; the child is killed with the caller. `namespaces`: CLONE_NEW* flags for the child.
Result<pid_t> fork_child(unsigned long namespaces = 0);

/// Runs `body` in a child that shares memory and descriptors with this process, which waits
/// meanwhile. Only the child enters namespaces, while files that it opens are open here. The child
/// is in new `namespaces`. It has ended on return, and the caller reaps it.
Result<pid_t> run_aside(unsigned long namespaces, std::function<void()> body);

/// Runs as the init process of a container's PID namespace: switches to the user, without privilege
/// or descriptors, and reaps orphans. Exits, which ends every process of the namespace, when the
/// other end of `agent` is closed.
[[noreturn]] void stay_as_init(int agent, uid_t uid, gid_t gid);

/// Creates a user namespace that maps ID 0 to this user and group, for ID-mapped mounts. Only the
/// tasks of a container with own_user enter it, in a mount namespace created when all mounts are in
/// place.
Result<UniqueFd> describe_id_map(uid_t uid, gid_t gid);

/// Starts our program of this name (with one argument, or nullptr: none) as uid and gid without
/// groups, capabilities or environment. Its only descriptors are `descriptors`, which become 3, 4,
/// …, and 0-2 on /dev/null. It is killed with the caller.
Result<pid_t> start_helper(const char* name, const char* argument, uid_t uid, gid_t gid,
                           const std::vector<int>& descriptors);

}  // namespace spc::agent
