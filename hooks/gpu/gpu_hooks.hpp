#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"
#include "hooks/libraries/libraries.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

// --- gpu hooks ---

extern const Hook gpu_hook;     ///< 97-gpu: refuses --container-gpu without a GPU
extern const Hook nvidia_hook;  ///< 98-nvidia
extern const Hook amd_hook;     ///< 98-amd
extern const Hook intel_hook;   ///< 98-intel

/// Returns whether the step, or outside Slurm the machine, has a GPU of any vendor.
bool has_gpus(const HookContext& context);

// --- dri ---

/// A GPU with a DRM driver in the kernel and libraries in the image.
struct DriGpu {
  std::string render_node, card_node;  ///< /dev/dri/renderD128, /dev/dri/card0 or empty
  std::string pci_address;  ///< 0000:c1:00.0; amdgpu_xcp_0 for a partition after the first
};

/// Returns the GPUs of a vendor (0x1002: AMD, 0x8086: Intel) in /sys/class/drm, in the order of
/// their PCI addresses, for AMD in that of ROCm.
std::vector<DriGpu> dri_gpus(const HookContext& context, std::string_view vendor);

// --- nvidia node ---

/// A driver file that 98-nvidia requests as a mount.
struct NvidiaOffer {
  MountEdit mount;                       ///< as requested in `prepare`; targets are unique
  std::uint32_t uses = 0;                ///< NvidiaUse
  std::optional<NvidiaLibrary> library;  ///< set for a library
};

/// Findings of 98-nvidia on the host in `prepare`.
struct NvidiaNode : HostFindings {
  NvidiaDriver driver;
  std::set<std::string> accessible;  ///< device nodes that the step may open
  std::vector<NvidiaOffer> offers;   ///< libraries first
  /// ELF data of the libraries in `offers`, in their order; machine 0: it cannot be read
  std::vector<HostLibrary> libraries;
  /// targets and texts of the offered ICD files, which name libraries of the driver
  std::vector<std::pair<std::string, std::string>> icd_files;
  bool has_mps = false;  ///< MPS's daemon runs
};

// --- requirement ---

/// Known properties of a GPU driver: "cuda" and "driver", and others if available ("arch",
/// "brand").
using RequirementFacts = std::map<std::string, std::string, std::less<>>;

/// Evaluates NVIDIA_REQUIRE_*: alternatives separated by spaces, each of conditions separated by
/// commas, `cuda>=12.6`. The operators are = != < <= > >= (libnvidia-container's src/cli/dsl.c).
/// Versions are compared numerically, other values as text. A condition on an unknown property is
/// true, and so is one that cannot be parsed. Returns the failed condition, empty if none fails:
/// with several alternatives, preferably the one on cuda.
std::string unsatisfied_condition(std::string_view requirement, const RequirementFacts& facts);

/// Refuses an image whose NVIDIA_REQUIRE_* the driver does not meet, unless NVIDIA_DISABLE_REQUIRE
/// is set. Warns about an image built for a later CUDA. `own_libcuda`: the image's libcuda is used.
void check_requirements(const HookContext& context, const NvidiaDriver& driver, bool own_libcuda,
                        Edits& edits);

// --- nvidia choice ---

/// The GPUs and driver files of a container.
struct NvidiaChoice {
  bool nothing = false;              ///< not even the driver's files are mounted
  std::uint32_t uses = 0;            ///< NvidiaUse
  std::uint32_t named = for_utility | for_compute;  ///< NvidiaUse without those from "all" only
  std::vector<std::string> devices;  ///< nodes of the GPUs, in order
  std::vector<std::string> denied;   ///< nodes that the step could open, to be masked
  std::vector<std::string> notes, warnings;
  std::string refusal;
};

/// Chooses the GPUs by the option, by NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES of the
/// job or, if it has none, of the image, and by Slurm's allocation. Never exceeds the step's
/// cgroup.
NvidiaChoice choose_nvidia(const HookContext& context, const NvidiaNode& node);

/// Returns the nodes that choose_nvidia may mask.
std::vector<std::string> deniable_nodes(const NvidiaNode& node);

/// Returns a variable of the job, or else of the image; nullptr if neither has it.
const std::string* of_job_or_image(const HookContext& context, std::string_view name);

// --- nvidia files ---

/// Returns the directory in which programs find the control daemon of MPS; empty if it does not
/// run.
std::string mps_directory(const HookContext& context);

/// Returns all driver files that a container could need; none if libraries and kernel module do not
/// match.
std::vector<NvidiaOffer> offers_of(const HookContext& context, const NvidiaDriver& driver);

/// Sets the targets in this image of the mounts for `uses`, with links and sonames, and drops the
/// other mounts. Call it in `create`.
void place_files(const HookContext& context, const std::vector<NvidiaOffer>& offers,
                 std::uint32_t uses, Edits& edits);

}  // namespace spc
