#include "hooks/frameworks/frameworks.hpp"

namespace spc {
namespace {

Result<Edits> variables_of_task(const HookContext& context) {
  Edits edits;
  const auto from_slurm = [&](const char* name, const char* slurm_name) {
    if (const std::string* value = context.of_job(slurm_name)) edits.environment.defaults[name] = *value;
  };
  from_slurm("WORLD_SIZE", "SLURM_STEP_NUM_TASKS");
  return edits;
}

}  // namespace

const Hook frameworks_hook{
    .name = "50-slurm-pytorch", .says = "rank and world of PyTorch, Lightning, Horovod and JAX", .task = variables_of_task};

}  // namespace spc
