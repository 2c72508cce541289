#pragma once

#include "base/result.hpp"
#include "task/namespaces.hpp"

namespace spc {

/// To be called as root, before Slurm changes to the user: lets the process keep, unused, what enter_container() needs.
/// Reports nothing: where it fails, entering says why.
void keep_privilege_to_enter();

/// Gives up every capability and the way to get any back (no_new_privs).
Result<void> give_up_privilege();

/// Gives up what keep_privilege_to_enter kept, and nothing that a task of the host has.
Result<void> stay_outside();

/// Takes the calling process, which must be single-threaded and already be the user, into the container's namespaces, then
/// gives up its privilege, also when entering failed. Where the container has a user namespace of its own the process has
/// all capabilities in that one, which is its purpose, and none outside.
Result<void> enter_container(const ContainerNamespaces& namespaces);

}  // namespace spc
