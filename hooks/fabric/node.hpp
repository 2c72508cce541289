#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// An adapter of the fabric: one that libibverbs knows (InfiniBand, RoCE, EFA, ...) or one of Slingshot.
struct FabricDevice {
  enum class Kind { verbs, slingshot };

  Kind kind = Kind::verbs;
  std::string name;                 ///< mlx5_0, cxi0
  std::string provider;             ///< what libibverbs needs for it: mlx5, bnxt_re, efa, ...; empty: unknown
  std::string link_layer;           ///< InfiniBand, Ethernet; empty if the kernel does not say
  std::string pci_address;          ///< 0000:1b:00.0; empty for one made of software
  std::string node;                 ///< what programs open: /dev/infiniband/uverbs0, /dev/cxi0; empty: there is none
  std::vector<std::string> others;  ///< /dev/infiniband/umad0, /dev/infiniband/issm0: for managing the fabric

  bool operator==(const FabricDevice&) const = default;
};

/// The adapters of the node, by name as people count (mlx5_2 before mlx5_10): from /sys/class/infiniband, /sys/class/cxi and the
/// nodes in /dev. Nothing is opened but files of sysfs.
std::vector<FabricDevice> fabric_devices(const HookContext& context);

/// The provider of an adapter, from the kernel module of its PCI device (irdma has network drivers there) or, where there is
/// none, from its name.
std::string verbs_provider(const std::string& module, const std::string& name);

}  // namespace spc
