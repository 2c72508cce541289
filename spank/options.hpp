#pragma once

#include <stddef.h>

#include <span>
#include <string>

#include "spank_container/runtime.h"

namespace spank_container {

/// The options of a container, from the library.
std::span<const spc_option> option_table();

/// srun asks plugins once per component of a heterogeneous step, but passes only the values of the
/// last one to the nodes, for all components. So if components differ, srun stores the options of
/// each in this variable of the step, and a task restores its own. The name starts with SLURM
/// because --export=NONE removes all others.
inline constexpr char kComponentsVariable[] = "SLURM_SCONTAINER_COMPONENTS";

/// Without one of these two there is no container.
inline constexpr size_t kImageRow = 0;
inline constexpr size_t kNameRow = 1;
inline constexpr const char* kContainerVariables[] = {"SCONTAINER_IMAGE", "PYXIS_CONTAINER_IMAGE",
                                                      "SCONTAINER_NAME", "PYXIS_CONTAINER_NAME",
                                                      kComponentsVariable};

/// An option as passed by Slurm, which may do so twice, from the environment and from the command
/// line.
struct GivenOption {
  size_t row = 0;  ///< of the table
  std::string value;

  bool operator==(const GivenOption&) const = default;
};

}  // namespace spank_container
