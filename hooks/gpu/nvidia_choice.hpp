#pragma once

#include <string>
#include <vector>

#include "hooks/gpu/nvidia_node.hpp"

namespace spc {

/// Which GPUs and driver files a container gets.
struct NvidiaChoice {
  bool nothing = false;              ///< not even the driver's files
  std::uint32_t uses = 0;            ///< NvidiaUse
  std::vector<std::string> devices;  ///< nodes, in order
  std::vector<std::string> denied;   ///< nodes that the step could open, to be masked
  std::vector<std::string> notes, warnings;
  std::string refusal;
};

/// From the option, NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES of the job or else of the
/// image, and Slurm's allocation; never more than the step's cgroup allows.
NvidiaChoice choose_nvidia(const HookContext& context, const NvidiaNode& node);

/// Nodes that choose_nvidia may mask.
std::vector<std::string> deniable_nodes(const NvidiaNode& node);

/// A variable of the job, or else of the image.
const std::string* of_job_or_image(const HookContext& context, std::string_view name);

}  // namespace spc
