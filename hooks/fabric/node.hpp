#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// A fabric adapter: one that programs use by libibverbs (InfiniBand, RoCE, ...), EFA, which has
/// verbs, but is used by libfabric, Omni-Path, which is used by PSM2 or libfabric, or Slingshot.
struct FabricDevice {
  enum class Kind { verbs, efa, omni_path, slingshot };

  Kind kind = Kind::verbs;
  std::string name;         ///< mlx5_0, cxi0
  std::string provider;     ///< the libibverbs provider: mlx5, bnxt_re, efa, ...; empty: unknown
  std::string link_layer;   ///< InfiniBand, Ethernet, EFA, Omni-Path, Slingshot; empty: unknown
  std::string pci_address;  ///< 0000:1b:00.0; empty for a software adapter
  std::string
      node;  ///< opened by programs: /dev/infiniband/uverbs0, /dev/hfi1_0, /dev/cxi0; empty: none
  std::vector<std::string> others;  ///< fabric management: /dev/infiniband/umad0,
                                    ///< /dev/infiniband/issm0; verbs of Omni-Path

  bool operator==(const FabricDevice&) const = default;
};

/// The node's adapters in natural order (mlx5_2 before mlx5_10): from /sys/class/infiniband,
/// /sys/class/cxi and the nodes in /dev. Only sysfs files are opened.
std::vector<FabricDevice> fabric_devices(const HookContext& context);

/// The provider of an adapter, from the kernel module of its PCI device (irdma has network drivers
/// there) or, without one, from its name.
std::string verbs_provider(const std::string& module, const std::string& name);

}  // namespace spc
