#pragma once

#include <sys/types.h>

#include <functional>
#include <initializer_list>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// Reduces the process, its bounding set and its groups permanently to what agent and builder need:
/// SYS_ADMIN (mounts, namespaces), SYS_CHROOT (setns of a mount namespace), SETUID and SETGID
/// (children, id map), KILL, and DAC_OVERRIDE, CHOWN, FOWNER, FSETID, SETFCAP: overlayfs uses the
/// mounter's credentials for every later write in the container. Also no_new_privs, and no tracing
/// or reading of its memory.
Result<void> keep_needed_privileges();

/// In a child: ends it with its parent, even if that has just happened. A change of IDs makes the
/// kernel forget it.
void stay_with(pid_t parent);

/// Like fork; the child is killed with the caller; `namespaces` are CLONE_NEW* flags for it.
Result<pid_t> fork_child(unsigned long namespaces = 0);

/// Runs `body` in a child that shares memory and descriptors with this process, which waits
/// meanwhile: what the child enters, it alone has entered, and what it opens, this process has. The
/// child is in new `namespaces`; it has ended, and is to be reaped.
Result<pid_t> run_aside(unsigned long namespaces, std::function<void()> body);

/// For the init process of a container's PID namespace: switches to the user, without privilege or
/// descriptors, reaps orphans, and exits, ending every process of the namespace, when `agent`'s
/// other end is closed.
[[noreturn]] void stay_as_init(int agent, uid_t uid, gid_t gid);

/// Kills a child, if it is running, and reaps it.
void end_child(pid_t child);

/// A user namespace that maps ID 0 to this user and group, for ID-mapped mounts. Only the
/// tasks of a container with own_user enter it, in a mount namespace created when all mounts are in
/// place.
Result<UniqueFd> describe_id_map(uid_t uid, gid_t gid);

/// Starts our program of this name (with one argument, or nullptr: none) as uid and gid without
/// groups, capabilities, environment or descriptors but `descriptors`, which become 3, 4, …; 0-2
/// are /dev/null. It is killed with the caller.
Result<pid_t> start_helper(const char* name, const char* argument, uid_t uid, gid_t gid,
                           std::initializer_list<int> descriptors);

}  // namespace spc::agent
