#pragma once

#include <string>

namespace spank_container {

/// --container=IMAGE is Slurm's own option, for OCI bundles; who types it may have meant ours. Of the command line and the
/// environment of the calling srun, sbatch or salloc: the hint, or an empty text if there is nothing to say.
std::string hint_about_oci_option();

/// Of a command line as /proc shows it: what is given to --container, or an empty text.
std::string oci_option_in(const std::string& command_line);

}  // namespace spank_container
