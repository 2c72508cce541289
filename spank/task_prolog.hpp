#pragma once

#include <string>

#include "user_side.hpp"

namespace spank_container {

/// The task prologs of a task that is about to enter its container. Slurm would run the site's after us, inside, where its path
/// must exist. So, where the site wants that, the task runs it before it enters, and Slurm's copy of its configuration in this
/// process forgets it. What else Slurm runs inside, it can: from 23.11 on with a launcher of ours (script_launcher.cpp).
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
