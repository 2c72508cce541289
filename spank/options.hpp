#pragma once

#include <stddef.h>

#include <span>
#include <string>
#include <vector>

#include "spank_container/runtime.h"

namespace spank_container {

/// What the user asked for, as text; the library checks it.
struct Options {
  std::string image;
  std::vector<std::string> mounts;
  std::string workdir;
  std::vector<std::string> env;
  std::string pull, platform;
  std::string name, save, tmpfs_size;
  std::vector<std::string> unshare;
  std::string batch;  ///< script or steps; empty: script
  std::vector<std::string> devices;
  std::string mpi;  ///< image or host
  int gpu = SPC_UNSET;
  int writable = SPC_UNSET;
  int mount_home = SPC_UNSET;
  int remap_root = SPC_UNSET;
  int entrypoint = SPC_UNSET;
  int entrypoint_log = SPC_UNSET;
  int contain = SPC_UNSET;
  int private_layer = SPC_UNSET;
  int slurm = SPC_UNSET;
  int explain = SPC_UNSET;
  int verbose = SPC_UNSET;
};

/// One row of the option table: the command line, the environment twins, the help and the man page come from it.
struct OptionRow {
  const char* name;      ///< --NAME
  const char* argument;  ///< shown in --help; nullptr: takes none
  const char* help;
  const char* twin;  ///< SCONTAINER_<twin> and PYXIS_CONTAINER_<twin>; nullptr: has none of its own
  /// Applies a value (empty for options without one); returns why it is refused, or an empty text.
  std::string (*apply)(Options&, const std::string& value);
};

std::span<const OptionRow> option_table();

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

/// Applies what was given, in order. Returns why one is refused, or an empty text.
std::string apply_given(Options& options, std::span<const GivenOption> given);

/// Applies the environment twins of options that are not set yet. Returns why one is refused, or an empty text.
std::string apply_twins(Options& options, GetVariable get, void* arg);

}  // namespace spank_container
