#pragma once

#include <stddef.h>

#include <span>
#include <string>

#include "spank_container/runtime.h"

namespace spank_container {

/// The options of a container, as the library knows them.
std::span<const spc_option> option_table();

/// srun asks plugins once for each component of a heterogeneous step, but carries only the values of the last one to the nodes,
/// to all of them. So, where components differ, srun writes down in this variable of the step what each has, and a task
/// takes its own again. The name begins with SLURM because --export=NONE removes all others.
inline constexpr char kComponentsVariable[] = "SLURM_SCONTAINER_COMPONENTS";

/// Without one of these two there is no container.
inline constexpr size_t kImageRow = 0;
inline constexpr size_t kNameRow = 1;
inline constexpr const char* kContainerVariables[] = {"SCONTAINER_IMAGE", "PYXIS_CONTAINER_IMAGE", "SCONTAINER_NAME",
                                                      "PYXIS_CONTAINER_NAME", kComponentsVariable};

/// An option as Slurm hands it over. Slurm may do so twice, from the environment and from the command line.
struct GivenOption {
  size_t row = 0;  ///< of the table
  std::string value;

  bool operator==(const GivenOption&) const = default;
};

/// Reads a variable; false: it is not set.
using GetVariable = bool (*)(const char* name, std::string& value, void* arg);

}  // namespace spank_container
