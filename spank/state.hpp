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
#include "spank_container/runtime.h"

namespace spank_container {

/// Before every line in Slurm's log, and for the user unless the site wants that of pyxis.
inline constexpr char kPrefix[] = "spank-container: ";

/// What the tasks of a node know of each other, in memory that they share.
struct Told {
  std::atomic<uint32_t> error;      ///< see user_side.cpp
  std::atomic<uint32_t> explainer;  ///< 1 + the number of the task that explains; 0: not known yet
};

/// What one process (srun, sbatch, slurmd, slurmstepd, a task) keeps between callbacks.
struct State {
  std::vector<GivenOption> given;  ///< slurmstepd, which is root, keeps the texts and looks at none
  std::vector<std::string>
      settings;            ///< plugstack.conf's words behind the plugin's name, as they are
  std::string step_error;  ///< why there is no agent; told to the user from task_init
  spc_runtime* runtime = nullptr;
  const char* prefix = kPrefix;  ///< before every line for the user
  uint32_t ended = 0;            ///< tasks of this node
  uint32_t killed = 0;           ///< of those, by SIGTERM or SIGKILL
  bool is_peer_asked =
      false;          ///< the plugin of the other name was given the options of a container
  uint32_t node = 0;  ///< of the step, in a task
  uint32_t task = 0;  ///< of the node
  bool verbose = false;
  bool tells_progress = false;  ///< this process tells the user how it goes: slurmstepd, the first
                                ///< task of the first node
  Told* told = nullptr;

  [[nodiscard]] bool is_first() const { return task == 0; }
};
inline State state;

/// What stands before a line for the user. The site's wish may become known while a task waits for
/// its container.
const char* prefix();

}  // namespace spank_container
