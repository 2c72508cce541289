#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::enroot {

// Containers that Slurm's steps have made (--container-name), or run in: in a step those of its
// node, elsewhere of all nodes. enroot shows those of pyxis as pyxis_NAME, and as pyxis_JOB_NAME
// where the name is the job's; steps without a name as pyxis_JOB.STEP.

struct JobContainer {
  std::string name;  ///< as enroot shows it
  std::string text;  ///< of --container-name
  std::string job;   ///< that it ends with, if it does
  std::string node;
  bool has_name = true;
  std::vector<pid_t> tasks;
};

std::vector<JobContainer> job_containers();

/// The one that enroot calls so.
std::optional<JobContainer> job_container(const std::string& name);

/// The step of Slurm's that a process of the caller's in a container belongs to, as
/// --container-name takes it, and its job.
struct JobStep {
  std::string job, text;
};
std::optional<JobStep> step_of_process(const std::string& process);

}  // namespace spc::enroot
