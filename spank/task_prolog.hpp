#pragma once

#include <string>

#include "user_side.hpp"

namespace spank_container {

/// The site's TaskProlog for a task that is about to enter its container. Slurm would run it after us, inside, where its path
/// must exist, and from 23.11 on the libraries of slurmstepd, too. So, where the site wants that, the task runs it before it
/// enters, and Slurm's copy of its configuration in this process forgets it.
class TaskProlog {
 public:
  /// On the host, as the user. `variables` is the job's environment.
  void run_on_host(const char* const* variables);
  /// Inside: does to task and environment what the script has printed, as Slurm would. Ends the task if the script failed.
  void apply(spank_t spank) const;

 private:
  int failed_ = 0;  ///< with this exit status
  std::string said_;
};

}  // namespace spank_container
