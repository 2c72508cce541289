#include "hooks/step/step_size.hpp"

#include <algorithm>

#include "hooks/step/host_list.hpp"

namespace spc {

StepSize StepSize::of(const HookContext& context) {
  StepSize step;
  step.tasks = context.job_number("SLURM_STEP_NUM_TASKS").value_or(1);
  step.nodes = context.job_number("SLURM_STEP_NUM_NODES").value_or(1);
  const std::string* counts = context.of_job("SLURM_STEP_TASKS_PER_NODE");
  const auto node = context.job_number("SLURM_NODEID");
  if (counts != nullptr && node) step.tasks_here = tasks_on_node(*counts, *node).value_or(1);
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  if (list == nullptr) list = context.of_job("SLURM_JOB_GPUS");
  if (list != nullptr && !list->empty())
    step.gpus = 1 + static_cast<std::uint32_t>(std::count(list->begin(), list->end(), ','));
  return step;
}

}  // namespace spc
