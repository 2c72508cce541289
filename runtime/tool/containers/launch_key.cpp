#include "tool/containers/launch_key.hpp"

#include <unistd.h>

#include <cstdlib>

#include "base/format.hpp"

namespace spc::tool {
namespace {

using Variables = std::map<std::string, std::string>;

std::string value_of(const Variables& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

bool is_several(const std::string& count) { return std::atol(count.c_str()) > 1; }

}  // namespace

std::string launch_key(const Variables& environment) {
  // Open MPI: the number of the launch is its mpirun's. Before Slurm's variables, which it may have
  // as well.
  if (is_several(value_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"))) {
    return formatted("ompi {} {}", value_of(environment, "PMIX_NAMESPACE"),
                     value_of(environment, "OMPI_MCA_ess_base_jobid"));
  }
  // Hydra: its proxy on this machine has started all of them.
  if (is_several(value_of(environment, "MPI_LOCALNRANKS")))
    return "hydra " + std::to_string(::getppid());
  // A task of srun. The batch script, and what it starts by itself, has no step.
  const std::string step = value_of(environment, "SLURM_STEP_ID");
  if (!step.empty() && is_several(value_of(environment, "SLURM_STEP_NUM_TASKS")) &&
      environment.contains("SLURM_LOCALID")) {
    return formatted("slurm {}.{}", value_of(environment, "SLURM_JOB_ID"), step);
  }
  return {};
}

}  // namespace spc::tool
