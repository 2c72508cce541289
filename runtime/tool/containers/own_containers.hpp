#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/process/supervised.hpp"
#include "base/result.hpp"

namespace spc::tool {

/// A container of the caller's jobs: one with a name that is noted in the home, on whichever node,
/// or one that processes on this node are in. What is noted may have been removed by the site
/// meanwhile.
struct OwnContainer {
  std::string name;  ///< without one, JOB.STEP of its step
  bool has_name = true;
  std::string image;
  std::string digest;
  std::string node;
  std::string job;           ///< that it ends with, if it does
  std::int64_t made_at = 0;  ///< seconds since 1970; 0: unknown
  std::string note;          ///< path; empty: none
  std::vector<pid_t> tasks;  ///< in it, on this node
};

/// Sorted by name and node.
std::vector<OwnContainer> own_containers();

/// As Slurm calls it, in a job; otherwise the host's short name.
std::string this_node();

/// What a command of Slurm's says within ten seconds.
Result<RunEnd> ask_slurm(const std::vector<std::string>& command);

/// The name of such a step, see below.
inline constexpr char kStepName[] = "scontainer";

/// What runs on a node for the user, by srun: in the caller's job if that has the node, in `job` if
/// it is given, else in a job of its own.
struct StepOrder {
  std::string node;
  std::string job;
  std::vector<std::string> options;  ///< of srun
  std::vector<std::string> command;
};
/// Runs it to its end; an Error only if srun cannot be executed.
Result<int> run_step(const StepOrder& order);
/// The same of root's as this user, whose processes may trace srun: it gets nothing of root's, no
/// terminal and no variables. Its exit status; what it says on standard error is shown.
Result<int> run_step_as(uid_t uid, const StepOrder& order);
/// The same in place of this process.
Error become_step(const StepOrder& order);

}  // namespace spc::tool
