#pragma once

#include <string>

namespace spank_container {

/// --container=IMAGE is Slurm's own option, for OCI bundles; the user may have meant ours. From the
/// command line and the environment of the calling srun, sbatch or salloc: the hint, or an empty
/// text.
std::string hint_about_oci_option();

/// From a command line as in /proc: the value of --container, or an empty text.
std::string oci_option_in(const std::string& command_line);

}  // namespace spank_container
