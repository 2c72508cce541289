#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

/// What a task enters: the container's mount namespace and its own namespaces of other kinds.
struct ContainerNamespaces {
  UniqueFd mounts;
  std::array<UniqueFd, kNamespaceKinds.size()> own;  ///< in the order of kNamespaceKinds; empty: the host's
  bool makes_cgroup = false;                         ///< the task makes a cgroup namespace for itself

  [[nodiscard]] bool has(NamespaceBits bit) const;
  /// Takes those of `bits` from `passed`, where they are consecutive from `first`.
  static Result<ContainerNamespaces> take(std::vector<UniqueFd>& passed, std::uint32_t bits, std::size_t first);
};

}  // namespace spc
