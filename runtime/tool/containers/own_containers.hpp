#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process/supervised.hpp"
#include "base/result.hpp"

namespace spc::tool {

/// A container of the caller's jobs: a named one noted in the home directory, on any node, or one
/// with running processes on this node. A noted container may have been removed by the site.
struct OwnContainer {
  std::string name;  ///< if the container has no name, JOB.STEP of its step
  bool has_name = true;
  std::string image;
  std::string digest;
  std::string node;
  std::string job;                 ///< the job whose end removes the container; empty: none
  std::int64_t made_at = 0;        ///< seconds since 1970; 0: unknown
  std::string note;                ///< path; empty: none
  std::vector<std::string> steps;  ///< noted steps with remapped root, JOB.STEP
  std::vector<pid_t> tasks;        ///< processes in the container on this node
};

/// Returns the caller's containers, sorted by name and node.
std::vector<OwnContainer> own_containers();

/// A step: its job, and JOB.STEP as in --container-name.
struct JobStep {
  std::string job, text;
};
/// Returns the step of one of the caller's processes, also of one whose variables the kernel does
/// not show, as in a container with remapped root.
std::optional<JobStep> step_of_process(pid_t process);

/// Returns the node's name in Slurm if called in a job, otherwise the host's short name.
std::string this_node();

/// Runs a Slurm command for at most ten seconds and returns its output.
Result<ProcessEnd> ask_slurm(const std::vector<std::string>& command);

/// Name of steps started by run_step() and become_step().
inline constexpr char kStepName[] = "scontainer";

/// A command to run on a node for the user, by srun. It runs in the caller's job if that has the
/// node, in `job` if given, otherwise in a new job.
struct StepOrder {
  std::string node;
  std::string job;
  std::vector<std::string> options;  ///< for srun
  std::vector<std::string> command;
};
/// Runs the step to its end. Returns its exit status, or an Error only if srun cannot be executed.
Result<int> run_step(const StepOrder& order);
/// As root: runs the step as this user, whose processes may trace srun. The step gets no
/// descriptors, terminal or variables of root. Returns the exit status. Standard error is passed
/// on.
Result<int> run_step_as(uid_t uid, const StepOrder& order);
/// Replaces this process by the step. Returns only an Error.
Error become_step(const StepOrder& order);

}  // namespace spc::tool
