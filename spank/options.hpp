#pragma once

#include <stddef.h>

#include <span>
#include <string>

#include "spank_container/runtime.h"

namespace spank_container {

/// Returns the library's table of container options.
std::span<const spc_option> option_table();

/// The variable of the step that holds the options of each component. srun calls plugins once per
/// component of a heterogeneous step, but passes only the last one's values to the nodes, for all
/// components. So if components differ, srun stores their options here, and a task restores its
/// own. The name starts with SLURM because --export=NONE removes all others.
inline constexpr char kComponentsVariable[] = "SLURM_SCONTAINER_COMPONENTS";

/// The options that request a container: one of them is required.
inline constexpr size_t kImageRow = 0;
inline constexpr size_t kRequestRows = 3;  ///< image, name, environment
inline constexpr const char* kContainerVariables[] = {
    "SCONTAINER_IMAGE",       "PYXIS_CONTAINER_IMAGE", "SCONTAINER_NAME", "PYXIS_CONTAINER_NAME",
    "SCONTAINER_ENVIRONMENT", kComponentsVariable};

/// An option as passed by Slurm, possibly twice: from the environment and from the command line.
struct GivenOption {
  size_t row = 0;  ///< row of the table
  std::string value;

  bool operator==(const GivenOption&) const = default;
};

}  // namespace spank_container
