#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
extern "C" {
#include <slurm/spank.h>  // has no extern "C" of its own
}

#include <atomic>
#include <string>
#include <vector>

#include "options.hpp"
#include "spank_container/runtime.h"

namespace spank_container {

/// Prefix of every line in Slurm's log, and of lines for the user unless the site selects pyxis's.
inline constexpr char kPrefix[] = "spank-container: ";

/// State shared by the tasks of a node, in shared memory.
struct NodeState {
  std::atomic<uint32_t> error;  ///< see user_side.cpp
  /// 1 + the number of the task that runs --container-explain; 0: not decided yet
  std::atomic<uint32_t> explainer;
};

/// State that one process (srun, sbatch, slurmd, slurmstepd, a task) keeps between callbacks.
struct State {
  std::vector<GivenOption> given;  ///< slurmstepd, which is root, stores the texts unread
  /// the plugin's arguments in plugstack.conf, unparsed
  std::vector<std::string> settings;
  std::string step_error;  ///< why there is no agent; reported to the user from task_init
  spc_runtime* runtime = nullptr;
  const char* prefix = kPrefix;  ///< prefix of every line for the user
  uint32_t ended = 0;            ///< tasks of this node
  uint32_t killed = 0;           ///< of those, by SIGTERM or SIGKILL
  uint32_t failed = 0;           ///< of those, with a status that is not 0
  /// the plugin of the other name received container options
  bool is_peer_asked = false;
  uint32_t node = 0;  ///< index in the step, in a task
  uint32_t task = 0;  ///< index on the node
  bool verbose = false;
  /// Reports progress to the user: slurmstepd, or the first task of the first node.
  bool tells_progress = false;
  NodeState* told = nullptr;

  [[nodiscard]] bool is_first() const { return task == 0; }
};
inline State state;

/// Sets the prefix of lines for the user. The site's choice may become known while a task waits for
/// its container.
const char* prefix();

}  // namespace spank_container
