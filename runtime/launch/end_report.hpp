#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "task/step_agent.hpp"

namespace spc {

// --- end report ---

/// Facts of a start for the report of the step's end: why a task may have failed, and which files
/// end with the container. Paths are those of the container unless the host is named.
struct EndFacts {
  bool explains = true;         ///< failure_hints in config.toml
  std::uint64_t discarded = 0;  ///< discarded_files in config.toml; 0: such files are not reported
  std::string prefix;           ///< of every line for the user

  bool is_first_node = true;
  std::string tracker;  ///< srun's address, if the step has several nodes (protocol/tracker.hpp)
  std::string srun;     ///< IP address of srun's host
  std::string node;     ///< name of this node

  UniqueFd host;                     ///< the host's root directory
  std::string host_directory;        ///< the tasks' work directory on the host
  std::string workdir;               ///< the tasks' work directory
  std::vector<std::string> command;  ///< command of the tasks
  std::string batch_script;          ///< path of a batch step's script on the host, or empty
  bool has_pmi = true;               ///< Slurm lets an MPI find the other tasks
  bool is_one_task = true;           ///< of more tasks, the hook 50-slurm-pmi checks the program

  bool has_own_layer = false;       ///< the writable layer ends with the step
  std::uint64_t tmpfs_size = 0;     ///< size limit of /tmp and the writable layer
  std::vector<std::string> places;  ///< directories in which users keep results
};

/// Starts the process that waits for the end of the step's tasks and prints the report. It must be
/// called in the leader, as the user, inside the container's root. For slurmstepd the process is a
/// saver (protocol/save.hpp) that may be lost: it is an orphan in the agent's process group.
Result<void> report_at_end(const StepChannel& step, const EndFacts& facts);

/// Returns the words of a command or script that can be names of files, in order. `is_script`: a
/// line that begins with # is a comment.
std::vector<std::string> possible_files(std::string_view text, bool is_script);

}  // namespace spc
