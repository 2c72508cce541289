#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

// --- stand in ---

/// Forks for a process that has joined a PID namespace, which only its children enter, and returns
/// in the child, which continues as the task. The process itself, whose PID Slurm knows, becomes
/// its stand-in: it holds no descriptor, passes on signals, and exits as the child does. If one is
/// killed, so is the other.
Result<void> leave_stand_in();

// --- enter ---

/// Namespaces of a container: the mount namespace and its own namespaces of other kinds.
struct ContainerNamespaces {
  UniqueFd mounts;
  std::array<UniqueFd, kNamespaceKinds.size()> own;  ///< as in kNamespaceKinds; empty: the host's
  bool makes_cgroup = false;  ///< the task creates a cgroup namespace of its own

  [[nodiscard]] bool has(NamespaceBits bit) const;
  /// Extracts the namespaces of `bits` from `passed`, where they are consecutive from `first`.
  static Result<ContainerNamespaces> take(std::vector<UniqueFd>& passed, std::uint32_t bits,
                                          std::size_t first);
};

/// Reduces the privilege that the task kept when it became the user (PR_SET_KEEPCAPS) to the
/// capabilities for entering, not in effect. Called as the user, before anything else. If the user
/// is root, the right to read and write any file also stays, in effect, until the container is
/// entered.
Result<void> keep_nothing_else();

/// For the leader: keeps only CAP_SYS_CHROOT, not in effect, and sets no_new_privs, so that
/// CAP_SYS_CHROOT cannot lead to further privilege.
Result<void> keep_only_chroot();

/// Drops all capabilities and sets no_new_privs.
Result<void> give_up_privilege();

/// Drops the kept capabilities, but none that a task on the host has.
Result<void> stay_outside();

/// Moves the calling process, which must be single-threaded and already run as the user, into the
/// container's namespaces. Drops its privilege, even if entering failed. If the container has its
/// own user namespace, the process has all capabilities in it, and none outside.
Result<void> enter_container(const ContainerNamespaces& namespaces);

/// For the leader: makes `root`, open as a directory, the process's root directory. The process
/// stays in its namespaces, and drops its privilege, even on failure.
Result<void> enter_root(int root);

}  // namespace spc
