#pragma once

#include <optional>
#include <string>
#include <vector>

#include "error_report.hpp"
#include "user_side.hpp"

namespace spank_container {

/// What srun and the tasks of its step tell each other past Slurm: srun in variables of the step, which no task's program sees,
/// and tasks that fail through a socket.

/// A variable of the job, whose environment is not slurmstepd's.
bool variable_of_job(const char* name, std::string& value, void* spank);

// --- in srun, sbatch and salloc ---

/// What the options read since the last call were: srun asks once for each component of a heterogeneous step.
std::vector<GivenOption> given_to_this_component();

/// Where components have different options the nodes are told what each has. Returns why that cannot be, or an empty text.
std::string keep_components_apart(const std::vector<GivenOption>& given);

/// Tells the nodes where srun will listen for their errors. Before the step's environment is made: once it is, what is set
/// reaches one component only.
void offer_to_gather_errors();

// --- in a task ---

/// The options that its component was given take the place of those that Slurm carried, which are the last one's. Returns why
/// it cannot be found, or an empty text. `is_component`: the step is one whose components differ.
std::string take_own_component(spank_t spank, bool& is_component);

/// The srun of a step on several nodes.
class SrunThatListens {
 public:
  /// `asks`: this task has something to say if it fails; of the others only the variable is taken away.
  static std::optional<SrunThatListens> of_this_step(spank_t spank, bool asks);
  /// Hands it the error of this node. False if it has not taken it, and so will not print it.
  [[nodiscard]] bool takes(const char* error) const;

 private:
  std::string host_, node_;
  ReportAddress address_;
  int wanted_ = 1;  ///< by the site
};

}  // namespace spank_container
