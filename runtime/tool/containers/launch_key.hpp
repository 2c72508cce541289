#pragma once

#include <map>
#include <string>

namespace spc {

/// What is the same for all processes of one parallel launch on this machine, and different for every other: of Open MPI's
/// mpirun, of Hydra (MPICH, Intel MPI) and of srun, by the variables that they set. Empty: the process is alone, or nobody says.
std::string launch_key(const std::map<std::string, std::string>& environment);

}  // namespace spc
