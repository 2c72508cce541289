#pragma once

#include "base/result.hpp"
#include "task/namespaces.hpp"

namespace spc {

/// Call as root, before Slurm changes to the user: keeps, unused, the capabilities that enter_container() needs.
/// Reports nothing: if it fails, entering reports why.
void keep_privilege_to_enter();

/// Drops all capabilities and sets no_new_privs.
Result<void> give_up_privilege();

/// Drops what keep_privilege_to_enter kept, and nothing that a task on the host has.
Result<void> stay_outside();

/// Moves the calling process, which must be single-threaded and already run as the user, into the container's namespaces, then
/// drops its privilege, even if entering failed. If the container has its own user namespace, the process has
/// all capabilities in it, and none outside.
Result<void> enter_container(const ContainerNamespaces& namespaces);

}  // namespace spc
