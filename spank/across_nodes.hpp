#pragma once

#include <optional>
#include <string>
#include <vector>

#include "error_report.hpp"
#include "user_side.hpp"

namespace spank_container {

/// What srun and the tasks of its step exchange without Slurm's help: srun through variables of the
/// step that no program sees, failing tasks through a socket.

/// A variable of the job, whose environment is not slurmstepd's.
bool variable_of_job(const char* name, std::string& value, void* spank);

// --- in srun, sbatch and salloc ---

/// The options read since the last call: srun asks once per component of a heterogeneous step.
std::vector<GivenOption> given_to_this_component();

/// If components have different options, tells the nodes those of each. Returns why that is
/// impossible, or an empty text.
std::string keep_components_apart(const std::vector<GivenOption>& given);

/// Begins to ask what the component's image tag stands for: once for all nodes of the step.
void ask_for_tag(spc_runtime* runtime, const spc_options& options);
/// Tells the nodes of a heterogeneous step, before its environment is created. Others are told as
/// late as possible.
void tell_tags_of_components();

/// Tells the nodes where srun will listen: for their errors, and for nodes that lack the image
/// (spc_meeting_open). Before the step's environment is created: afterwards, a variable reaches one
/// component only.
void listen_to_nodes(const spc_summary& summary);

/// Sets limits of the step with which a node can execute its command only if the plugin there has
/// called allow_command(). A node without the plugin ignores the options of a container, and would
/// execute the command on the host.
void forbid_command();

// --- in a task ---

/// Restores what forbid_command() has replaced.
void allow_command(spank_t spank);

/// What srun has told of tags, for spc_options; its variable is removed.
std::string take_tags(spank_t spank);
/// Where srun listens for nodes that lack the image, for spc_options; the variable is removed.
std::string take_meeting(spank_t spank);

/// The options of the task's own component replace those passed by Slurm, which are the last one's.
/// Returns why the component cannot be found, or an empty text. `is_component`: the components of
/// the step differ.
std::string take_own_component(spank_t spank, bool& is_component);

/// The srun of a step on several nodes.
class SrunThatListens {
 public:
  /// The variable that names it is removed.
  static std::optional<SrunThatListens> of_this_step(spank_t spank);
  /// Sends it this node's error. False: it was not accepted, and will not be printed.
  [[nodiscard]] bool takes(const char* error) const;

 private:
  std::string host_, node_;
  ReportAddress address_;
};

}  // namespace spank_container
