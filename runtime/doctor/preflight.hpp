#pragma once

#include <vector>

#include "doctor/finding.hpp"
#include "doctor/surroundings.hpp"

namespace spc {

/// Looks for what is missing on a node or in a step for GPUs, NCCL and MPI: each check gives one finding, also where there is
/// nothing to be wrong. Opens no device, starts nothing, and needs no privilege.
std::vector<Finding> preflight(const Surroundings& around);

// Its parts.
std::vector<Finding> check_job(const Surroundings& around);
std::vector<Finding> check_gpus(const Surroundings& around);
std::vector<Finding> check_limits(const Surroundings& around);
std::vector<Finding> check_mpi(const Surroundings& around);
std::vector<Finding> check_fabric(const Surroundings& around);

}  // namespace spc
