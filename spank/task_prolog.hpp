#pragma once

#include <string>

#include "user_side.hpp"

namespace spank_container {

/// The task prologs of a task that is about to enter its container. Slurm would run the site's after us, in the container, where
/// its path must exist. If the site wants it on the host, the task runs it before entering, and removes it from Slurm's
/// configuration in this process. Other scripts run by Slurm in the container work: from 23.11 on with our launcher
/// (runtime/container_helper).
class TaskProlog {
 public:
  /// On the host, as the user. `variables` is the job's environment.
  void run_on_host(const char* const* variables);
  /// In the container: applies the script's output to task and environment, as Slurm would. Ends the task if the script failed.
  void apply(spank_t spank) const;

 private:
  int failed_ = 0;  ///< with this exit status
  std::string said_;
};

}  // namespace spank_container
