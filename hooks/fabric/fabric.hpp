#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"
#include "hooks/libraries/libraries.hpp"

namespace spc {

// --- node ---

/// A fabric adapter: one that programs use through libibverbs (InfiniBand, RoCE, ...), EFA, which
/// has verbs but is used through libfabric, Omni-Path, which is used through PSM2 or libfabric, or
/// Slingshot.
struct FabricDevice {
  enum class Kind { verbs, efa, omni_path, slingshot };

  Kind kind = Kind::verbs;
  std::string name;         ///< mlx5_0, cxi0
  std::string provider;     ///< the libibverbs provider: mlx5, bnxt_re, efa, ...; empty: unknown
  std::string link_layer;   ///< InfiniBand, Ethernet, EFA, Omni-Path, Slingshot; empty: unknown
  std::string pci_address;  ///< 0000:1b:00.0; empty for a software adapter
  /// opened by programs: /dev/infiniband/uverbs0, /dev/hfi1_0, /dev/cxi0; empty: none
  std::string node;
  /// fabric management: /dev/infiniband/umad0, /dev/infiniband/issm0; verbs of Omni-Path
  std::vector<std::string> others;

  bool operator==(const FabricDevice&) const = default;
};

/// Returns the node's adapters in natural order (mlx5_2 before mlx5_10): from
/// /sys/class/infiniband, /sys/class/cxi and the nodes in /dev. Opens only sysfs files.
std::vector<FabricDevice> fabric_devices(const HookContext& context);

/// Returns the provider of an adapter, from the kernel module of its PCI device (irdma has network
/// drivers there) or, without one, from its name.
std::string verbs_provider(const std::string& module, const std::string& name);

// --- libraries ---

/// A library of fabric_libraries or fallback_libraries, as read on the node.
struct OfferedLibrary {
  std::string path;  ///< as the site names it
  HostLibrary library;
  std::string target;  ///< in the container
};

/// Reads a library of the node, of fabric_libraries or fallback_libraries, with the properties that
/// LibraryFit compares.
[[gnu::cold]] Result<HostLibrary> read_fabric_library(const HookContext& context,
                                                      const std::string& path, bool fallback);

/// Requests mounts of the site's fabric_libraries, and of fallback_libraries that they may need,
/// each under its file name. Call it in `prepare`. A file that is missing on the node, or is no
/// library, causes a warning. Two different files of one soname cause a refusal.
[[gnu::cold]] std::vector<OfferedLibrary> offer_fabric_libraries(const HookContext& context,
                                                                 Edits& edits);

/// Adds the libraries that can be loaded in the image without breaking its own. Call it in
/// `create`. They precede the image's libraries and are found by soname and by file name, by which
/// NCCL opens libnccl-net.so. A libibverbs provider (libmlx5-rdmav34.so) also gets the file by
/// which libibverbs finds it. Returns warnings: why libraries were left out, and what might break.
[[gnu::cold]] std::vector<std::string> give_fabric_libraries(
    const HookContext& context, const std::vector<OfferedLibrary>& offered, Edits& edits);

/// Returns the hint for a message, or an empty string if the site cannot act.
[[gnu::cold]] const char* hint_for(const Misfit& misfit);

/// The libraries that the image's loader finds, and those that `edits` adds.
class LibrariesInside {
 public:
  LibrariesInside(const HookContext& context, const Edits& edits);
  [[nodiscard]] bool have(const std::string& soname) const;
  /// Returns whether libibverbs supports adapters of this provider.
  [[nodiscard]] bool have_provider(const std::string& provider) const;
  /// Returns whether the image has a multi-node communication library: MPI, NCCL, UCX, libfabric.
  [[nodiscard]] bool can_talk() const;
  [[nodiscard]] bool uses_nccl() const;

 private:
  [[nodiscard]] bool image_has(const std::string& soname) const;

  const HookContext& context_;
  const Edits& edits_;
  std::string cache_;  ///< the image's ld.so.cache, which contains the library names
};

// --- choice ---

struct FabricAdapter {
  FabricDevice device;
  bool chosen = true;     ///< the step may use it
  bool withheld = false;  ///< excluded by the site's fabric_devices, regardless of the job
};

/// Selects the adapters that a step may use, of those in the site's fabric_devices, according to
/// the job's MELLANOX_VISIBLE_DEVICES (Mellanox adapters, as in enroot) and FABRIC_VISIBLE_DEVICES
/// (all). Unset, empty, `all` and `void` select all; `none` selects none; otherwise a list of
/// indices (in the order of fabric_devices(), among those the variable applies to), names or PCI
/// addresses. An unknown one is an error. The image's values are ignored.
Result<std::vector<FabricAdapter>> choose_adapters(const HookContext& context,
                                                   std::vector<FabricDevice> devices);

// --- fabric ---

/// The node's settings of NCCL and RCCL: /etc/nccl.conf, /etc/rccl.conf and the files they name, a
/// virtual topology. The image's settings follow them. Sets no variable.
extern const Hook nccl_hook;
/// The variables of SHARP's collectives, for jobs that request it: --network=sharp.
extern const Hook sharp_hook;
/// Fabric adapters: which are usable, the node's libraries for them, limits, and warnings.
extern const Hook fabric_hook;

/// Returns whether the fabric is enabled: true unless the site has disabled it.
bool fabric_is_on(const HookContext& context);

}  // namespace spc
