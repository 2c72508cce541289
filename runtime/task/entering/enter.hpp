#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

/// Namespaces of a container: the mount namespace and its own namespaces of other kinds.
struct ContainerNamespaces {
  UniqueFd mounts;
  std::array<UniqueFd, kNamespaceKinds.size()> own;  ///< as in kNamespaceKinds; empty: the host's
  bool makes_cgroup = false;  ///< the task makes a cgroup namespace for itself

  [[nodiscard]] bool has(NamespaceBits bit) const;
  /// Takes those of `bits` from `passed`, where they are consecutive from `first`.
  static Result<ContainerNamespaces> take(std::vector<UniqueFd>& passed, std::uint32_t bits,
                                          std::size_t first);
};

/// As the user, before anything else: of what the task kept when it became the user
/// (PR_SET_KEEPCAPS), only what entering takes is left, still unused. If the user is root, so is
/// the right to read and write any file, in effect, until the container is entered.
Result<void> keep_nothing_else();

/// For the leader: of that, only CAP_SYS_CHROOT is left, unused, and no_new_privs is set, without
/// which it would be worth something.
Result<void> keep_only_chroot();

/// Drops all capabilities and sets no_new_privs.
Result<void> give_up_privilege();

/// Drops what the task kept, and nothing that a task on the host has.
Result<void> stay_outside();

/// Moves the calling process, which must be single-threaded and already run as the user, into the
/// container's namespaces, then drops its privilege, even if entering failed. If the container has
/// its own user namespace, the process has all capabilities in it, and none outside.
Result<void> enter_container(const ContainerNamespaces& namespaces);

/// For the leader: `root`, open as a directory, is its root directory from now on. It stays in its
/// namespaces, and drops its privilege, even if that failed.
Result<void> enter_root(int root);

}  // namespace spc
