#include "hooks/step/step_size.hpp"

#include <algorithm>

#include "hooks/step/host_list.hpp"

namespace spc {
namespace {

std::optional<std::uint32_t> count_in_job(const HookContext& context, const char* name) {
  const std::string* text = context.of_job(name);
  return text == nullptr ? std::nullopt : decimal(*text);
}

}  // namespace

StepSize StepSize::of(const HookContext& context) {
  StepSize step;
  step.tasks = count_in_job(context, "SLURM_STEP_NUM_TASKS").value_or(1);
  step.nodes = count_in_job(context, "SLURM_STEP_NUM_NODES").value_or(1);
  const std::string* counts = context.of_job("SLURM_STEP_TASKS_PER_NODE");
  const auto node = count_in_job(context, "SLURM_NODEID");
  if (counts != nullptr && node) step.tasks_here = tasks_on_node(*counts, *node).value_or(1);
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  if (list == nullptr) list = context.of_job("SLURM_JOB_GPUS");
  if (list != nullptr && !list->empty()) step.gpus = 1 + static_cast<std::uint32_t>(std::count(list->begin(), list->end(), ','));
  return step;
}

}  // namespace spc
