#pragma once

#include <span>
#include <string>
#include <vector>

#include "options.hpp"

namespace spank_container {

/// The plugin's name, with which Slurm keeps options in the environment of a job.
inline const char* own_plugin = "spank_container";

/// Reads a variable; false: unset.
using GetVariable = bool (*)(const char* name, std::string& value, void* arg);

/// What Slurm does not tell about the options it passes on:
///
/// - Whether a value is from the command line or was an option of the sbatch or salloc around this
/// srun, which Slurm keeps in
///   the environment for all steps of the job. The former overrides the latter; two of the former
///   contradict each other.
/// - All values of a repeated option: only the last one reaches the node. And those overridden
///   by an opposite reach it, too.
///
/// So the node gets this in variables of the step. Their names start with SLURM_SPANK_ because
/// --export=NONE removes most others.

/// In srun, sbatch and salloc, before Slurm reads them: the options that the sbatch or salloc
/// around has given to another plugin, pyxis for example, become this plugin's.
void take_over_options_of(const char* plugin);

/// In srun, sbatch and salloc, for the options of one component: without the values of the
/// environment that the command line overrides.
std::vector<GivenOption> without_beaten(std::span<const GivenOption> given, GetVariable get,
                                        void* arg);

/// In srun, sbatch and salloc, after all checks: sets the variables with which whole_given() on the
/// node restores `counts` from what Slurm has passed and will pass on.
void send_beside(std::span<const GivenOption> counts, std::span<const GivenOption> handed_over);

/// In the task of a batch step to which Slurm has passed no options: those that it keeps in the
/// job's environment.
std::vector<GivenOption> kept_by_slurm(GetVariable get, void* arg);

/// In a task, from what Slurm passes on there.
std::vector<GivenOption> whole_given(std::span<const GivenOption> given, GetVariable get,
                                     void* arg);

}  // namespace spank_container
