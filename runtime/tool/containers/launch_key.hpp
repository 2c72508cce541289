#pragma once

#include <map>
#include <string>

namespace spc::tool {

/// A key shared by all processes of one parallel launch on this machine, and by no others: Open
/// MPI's mpirun, Hydra (MPICH, Intel MPI) and srun, from the variables they set. Empty: the process
/// is alone or unknown.
std::string launch_key(const std::map<std::string, std::string>& environment);

}  // namespace spc::tool
