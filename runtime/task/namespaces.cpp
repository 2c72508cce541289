#include "task/namespaces.hpp"

namespace spc {

bool ContainerNamespaces::has(NamespaceBits bit) const {
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (kNamespaceKinds[i].bit == bit) return bool(own[i]);
  }
  return false;
}

Result<ContainerNamespaces> ContainerNamespaces::take(std::vector<UniqueFd>& passed, std::uint32_t bits, std::size_t first) {
  ContainerNamespaces namespaces;
  namespaces.mounts = std::move(passed.at(0));
  namespaces.makes_cgroup = (bits & own_cgroup) != 0;
  for (std::size_t i = 0; i < kNamespaceKinds.size(); ++i) {
    if ((bits & kNamespaceKinds[i].bit & ~std::uint32_t{own_cgroup}) == 0) continue;
    if (first == passed.size()) return Error(ErrorKind::internal, "enter the container: a namespace is missing");
    namespaces.own[i] = std::move(passed[first++]);
  }
  return namespaces;
}

}  // namespace spc
