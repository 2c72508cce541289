#pragma once

#include <sys/types.h>

#include <initializer_list>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// Reduces the process, its bounding set and its groups to what agent and builder need, for good:
/// SYS_ADMIN (mounts, namespaces), SYS_CHROOT (setns of a mount namespace), SETUID and SETGID (children, id map), KILL, and
/// DAC_OVERRIDE, CHOWN, FOWNER, FSETID, SETFCAP: overlayfs keeps the mounter's credentials for every later write in the container.
/// Also no_new_privs.
Result<void> keep_needed_privileges();

/// Like fork, and the child is killed when the caller ends; `namespaces` are CLONE_NEW* flags for it.
Result<pid_t> fork_child(unsigned long namespaces = 0);

/// For the first process of a container's pid namespace: becomes the user, without any privilege or descriptor, reaps what is
/// left to it, and ends, and with it every process of the namespace, when `agent`'s other end does.
[[noreturn]] void stay_as_init(int agent, uid_t uid, gid_t gid);

/// Kills a child, if it has not ended, and reaps it.
void end_child(pid_t child);

/// A user namespace that maps id 0 to this user and group, to describe an idmapped mount with. Nobody lives in it but the
/// tasks of a container with own_user, in a mount namespace that is made when all mounts are in place.
Result<UniqueFd> describe_id_map(uid_t uid, gid_t gid);

/// Starts `program` (argument vector of at most one word) as uid and gid without groups, capabilities, environment or
/// descriptors but `descriptors`, which become 3, 4, …; 0-2 are /dev/null. It is killed when the caller ends.
Result<pid_t> start_helper(const char* program, const char* argument, uid_t uid, gid_t gid,
                           std::initializer_list<int> descriptors);

}  // namespace spc::agent
