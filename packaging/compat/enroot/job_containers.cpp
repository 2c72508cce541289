#include "job_containers.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/process/environment.hpp"
#include "tool/containers/own_containers.hpp"

namespace spc::enroot {

using namespace tool;

std::vector<JobContainer> job_containers() {
  const bool in_step = std::getenv("SLURMD_NODENAME") != nullptr;
  std::vector<JobContainer> containers;
  for (const OwnContainer& one : own_containers()) {
    if (in_step && one.node != this_node()) continue;
    const std::string name = "pyxis_" + (one.job.empty() ? "" : one.job + "_") + one.name;
    containers.push_back({.name = name,
                          .text = one.name,
                          .job = one.job,
                          .node = one.node,
                          .has_name = one.has_name,
                          .tasks = one.tasks});
  }
  return containers;
}

std::optional<JobContainer> job_container(const std::string& name) {
  for (JobContainer& one : job_containers()) {
    if (one.name == name) return std::move(one);
  }
  return std::nullopt;
}

std::optional<JobStep> step_of_process(const std::string& process) {
  const bool is_number =
      !process.empty() && std::ranges::all_of(process, [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number || process.size() > 9) return std::nullopt;
  std::string job, step;
  const auto variables = environment_of_process(static_cast<pid_t>(std::stol(process)));
  if (!variables) return std::nullopt;
  for (const std::string& variable : *variables) {
    if (variable.starts_with("SLURM_JOB_ID=")) job = variable.substr(variable.find('=') + 1);
    if (variable.starts_with("SLURM_STEP_ID=")) step = variable.substr(variable.find('=') + 1);
  }
  if (job.empty()) return std::nullopt;
  return JobStep{job, job + "." + (step.empty() ? "batch" : step)};
}

}  // namespace spc::enroot
