#pragma once

#include <string>
#include <string_view>

#include "spank/job_options.hpp"
#include "spank/state.hpp"

// --- user side ---

#pragma GCC visibility push(default)
extern "C" const char plugin_name[];  // registration.cpp
/// Declared in Slurm's library for its cli_filter plugins.
extern "C" size_t spank_get_plugin_names(char*** names) __attribute__((weak));
#pragma GCC visibility pop

namespace spank_container {

/// Returns whether this is spank_pyxis.so, which serves login hosts that still have NVIDIA's pyxis.
inline bool is_pyxis() { return plugin_name == std::string_view("pyxis"); }

inline const char* peer() { return is_pyxis() ? "spank_container" : "pyxis"; }

/// Returns whether the plugin of the other name is loaded as well.
bool has_peer();

/// Variables from which Slurm reads the options that request a container, until init has returned:
/// for spank_container and for pyxis.
inline constexpr const char* kAskedOf[][3] = {
    {"_SLURM_SPANK_OPTION_spank_container_container_image",
     "_SLURM_SPANK_OPTION_spank_container_container_name",
     "_SLURM_SPANK_OPTION_spank_container_environment"},
    {"_SLURM_SPANK_OPTION_pyxis_container_image", "_SLURM_SPANK_OPTION_pyxis_container_name",
     "_SLURM_SPANK_OPTION_pyxis_environment"}};

/// Variables that remain in a job's environment, with the same meaning for its batch step: Slurm
/// before 23.11 loses the others in jobs with --export=NONE.
inline constexpr const char* kKeptOf[][3] = {
    {"SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_container_image",
     "SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_container_name",
     "SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_environment"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
     "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_name",
     "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_environment"}};

/// Error of a task if the node lacks the plugin of the other name, which received container
/// options. Slurm ignores options of unknown plugins and would execute the command on the host.
inline constexpr const char* kPeerIsMissing[] = {
    "options of a container came from pyxis, and this node has no plugin of that name "
    "(hint: the administrator must add \"required spank_pyxis.so\" to plugstack.conf of the node, "
    "or replace pyxis with spank_container.so where jobs are submitted)",
    "options of a container came from spank_container.so, and this node has only spank_pyxis.so "
    "(hint: the administrator must add \"required spank_container.so\" to plugstack.conf of the "
    "node)"};

/// In srun, sbatch and salloc: returns whether this plugin registers the options there. Converts
/// options that a job has from a login host with pyxis into spank_container's.
bool has_options();

/// In srun, sbatch and salloc: refuses requests known to be invalid before anything is submitted.
/// Returns 0, or ends the program after printing the reason.
int refuse_early(spank_t spank);

/// In srun, when its step is about to start: passes its information to the nodes and listens for
/// their errors until `stop_collecting`. Returns 0, as the callback does.
int collect_errors(spank_t spank);
void stop_collecting();

/// In a task, as the user: moves it into the container, or prints the reason and ends it with exit
/// code 1.
void enter_or_end_task(spank_t spank);

// --- submission ---

/// In srun, sbatch and salloc: returns the value of one of their own options, such as "partition",
/// from the command line, a script or the environment; empty if unset. SPANK has no call for it.
/// The programs export their options, and Slurm's library the function by which its cli_filter
/// plugins read them (20.02 and later). If either is missing, the value is unknown.
std::string option_of_slurm(const char* name);

}  // namespace spank_container
