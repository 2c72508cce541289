#pragma once

#include <string>

namespace spc::tool {

/// Completion of srun's, sbatch's and salloc's container options, for the end of a shell's script.
/// What completes these commands already, Slurm's own for example, goes on doing so.
std::string slurm_completion_for_bash();
std::string slurm_completion_for_fish();
std::string slurm_completion_for_zsh();

}  // namespace spc::tool
