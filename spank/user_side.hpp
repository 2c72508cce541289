#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
extern "C" {
#include <slurm/spank.h>  // does not say it is C
}

#include <atomic>
#include <string>
#include <vector>

#include "options.hpp"
#include "settings.hpp"
#include "spank_container/runtime.h"

namespace spank_container {

/// Before every line in Slurm's log, and for the user unless the site wants that of pyxis.
inline constexpr char kPrefix[] = "spank-container: ";

/// What one process (srun, sbatch, slurmd, slurmstepd, a task) keeps between callbacks.
struct State {
  std::vector<GivenOption> given;     ///< slurmstepd, which is root, keeps the texts and looks at none
  std::vector<std::string> settings;  ///< plugstack.conf's words behind the plugin's name, as they are
  std::string step_error;             ///< why there is no agent; told to the user from task_init
  spc_runtime* runtime = nullptr;
  const char* prefix = kPrefix;  ///< before every line for the user
  uint32_t ended = 0;            ///< tasks of this node
  uint32_t killed = 0;           ///< of those, by SIGTERM or SIGKILL
  bool is_first = false;         ///< the first task of its node
  bool verbose = false;
  bool tells_progress = false;  ///< this process tells the user how it goes: slurmstepd, the first task of the first node
  std::atomic<uint32_t>* told = nullptr;  ///< shared by the tasks of a node: see user_side.cpp
};
inline State state;

/// What stands before a line for the user. The site's wish may become known while a task waits for its container.
const char* prefix();

/// Whether the site wants the options in sbatch and salloc, too.
bool has_options_in_allocator();

/// In srun, sbatch and salloc: refuses what can be known to be wrong before anything is submitted. Returns 0, or ends the
/// program after saying why.
int refuse_early(spank_t spank);

/// In srun, when its step is about to start: tells its nodes what it knows, and listens for their errors, until `end_gathering`.
/// Returns 0, as the callback does.
int gather_errors(spank_t spank);
void end_gathering();

/// In a task, as the user: takes it into the container, or says why not and ends it with exit code 1.
void enter_or_end_task(spank_t spank);

}  // namespace spank_container
