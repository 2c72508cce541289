#pragma once

#include <string>

#include "state.hpp"

/// Slurm's configuration in slurmstepd; a task's process has its own copy. The plugin is compiled
/// with the header of the exact version that loads it.
extern "C" __attribute__((weak)) slurm_conf_t slurm_conf;

namespace spank_container {

/// The plugin's part of moving a task into its container (runtime/task/entering/arrival.hpp). The
/// task still has the capabilities for entering, so this file reads no text of the user: it passes
/// pointers on. tests/architecture counts its lines.

struct TaskStarted {
  int code = SPC_E_INTERNAL;  ///< of spc_task_enter; unchanged without an agent: State::step_error
  int prolog_status = 0;      ///< exit status of the site's TaskProlog, if it ran on the host
  std::string prolog_said;    ///< its output, unparsed
};

/// As the user: takes the task into the container. The process has no capability afterwards.
/// `environment` has `read` and `fail_step`.
const TaskStarted& start_task(spank_t spank, spc_environment environment);

}  // namespace spank_container
