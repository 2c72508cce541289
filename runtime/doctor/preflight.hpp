#pragma once

#include <vector>

#include "doctor/finding.hpp"
#include "doctor/surroundings.hpp"
#include "hooks/fabric/node.hpp"

namespace spc {

/// Checks what GPUs, NCCL and MPI need from a node or step: each check gives one finding, even if
/// it does not apply. Opens no device, starts no process, and needs no privilege.
std::vector<Finding> preflight(const Surroundings& around);

// Its parts.
std::vector<Finding> check_job(const Surroundings& around);
std::vector<Finding> check_gpus(const Surroundings& around);
std::vector<Finding> check_limits(const Surroundings& around);
std::vector<Finding> check_mpi(const Surroundings& around);
std::vector<Finding> check_fabric(const Surroundings& around);

/// The node's adapters.
std::vector<FabricDevice> fabric_of(const Surroundings& around);

}  // namespace spc
