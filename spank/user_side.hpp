#pragma once

#include <string_view>

#include "settings.hpp"
#include "state.hpp"

#pragma GCC visibility push(default)
extern "C" const char plugin_name[];  // registration.cpp
/// Of Slurm's library, for its cli_filter plugins.
extern "C" size_t spank_get_plugin_names(char*** names) __attribute__((weak));
#pragma GCC visibility pop

namespace spank_container {

/// Whether this is spank_pyxis.so, which serves login hosts that still have NVIDIA's pyxis.
inline bool is_pyxis() { return plugin_name == std::string_view("pyxis"); }

inline const char* peer() { return is_pyxis() ? "spank_container" : "pyxis"; }

/// Whether the plugin of the other name is loaded as well.
bool has_peer();

/// Variables from which Slurm takes the options that mean a container, until init is over: for
/// spank_container and for pyxis.
inline constexpr const char* kAskedOf[][2] = {
    {"_SLURM_SPANK_OPTION_spank_container_container_image",
     "_SLURM_SPANK_OPTION_spank_container_container_name"},
    {"_SLURM_SPANK_OPTION_pyxis_container_image", "_SLURM_SPANK_OPTION_pyxis_container_name"}};

/// Variables that stay in a job's environment. For its batch step they mean the same: of a job with
/// --export=NONE, Slurm before 23.11 loses the others.
inline constexpr const char* kKeptOf[][2] = {
    {"SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_container_image",
     "SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_container_name"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
     "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_name"}};

/// A task's error if the node lacks the plugin of the other name, which was given the options of a
/// container: Slurm ignores options of unknown plugins, and would execute the command on the host.
inline constexpr const char* kPeerIsMissing[] = {
    "options of a container came from pyxis, and this node has no plugin of that name "
    "(hint: the administrator must add \"required spank_pyxis.so\" to plugstack.conf of the node, "
    "or replace pyxis with spank_container.so where jobs are submitted)",
    "options of a container came from spank_container.so, and this node has only spank_pyxis.so "
    "(hint: the administrator must add \"required spank_container.so\" to plugstack.conf of the "
    "node)"};

/// In srun, sbatch and salloc: whether this plugin registers the options there. Options that a job
/// has from a login host with pyxis become those of spank_container.
bool has_options();

/// In srun, sbatch and salloc: refuses what can be known to be wrong before anything is submitted.
/// Returns 0, or ends the program after saying why.
int refuse_early(spank_t spank);

/// In srun, when its step is about to start: tells its nodes what it knows, and listens for their
/// errors, until `end_gathering`. Returns 0, as the callback does.
int gather_errors(spank_t spank);
void end_gathering();

/// In a task, as the user: takes it into the container, or says why not and ends it with exit
/// code 1.
void enter_or_end_task(spank_t spank);

}  // namespace spank_container
