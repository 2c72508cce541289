#pragma once

#include <string>

namespace spank_container {

/// In srun, sbatch and salloc: the value of one of their own options, such as "partition", from the
/// command line, a script or the environment; empty if it has none. SPANK has no call for it: the
/// programs export their options, and Slurm's library the function by which its cli_filter plugins
/// read them (20.02 and later). Where one of both is missing, nothing is known.
std::string option_of_slurm(const char* name);

}  // namespace spank_container
