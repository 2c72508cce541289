#pragma once

#include "base/result.hpp"
#include "task/namespaces.hpp"

namespace spc {

/// As the user, before anything else: of what the task kept when it became the user (PR_SET_KEEPCAPS), only what entering takes is left, still unused.
/// If the user is root, so is the right to read and write any file, in effect, until the container is entered.
Result<void> keep_nothing_else();

/// For the leader: of that, only CAP_SYS_CHROOT is left, unused, and no_new_privs is set, without which it
/// would be worth something.
Result<void> keep_only_chroot();

/// Drops all capabilities and sets no_new_privs.
Result<void> give_up_privilege();

/// Drops what the task kept, and nothing that a task on the host has.
Result<void> stay_outside();

/// Moves the calling process, which must be single-threaded and already run as the user, into the container's namespaces, then
/// drops its privilege, even if entering failed. If the container has its own user namespace, the process has
/// all capabilities in it, and none outside.
Result<void> enter_container(const ContainerNamespaces& namespaces);

/// For the leader: `root`, open as a directory, is its root directory from now on. It stays in its namespaces, and
/// drops its privilege, even if that failed.
Result<void> enter_root(int root);

}  // namespace spc
