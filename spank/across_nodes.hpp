#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spank/node_errors.hpp"
#include "spank/user_side.hpp"

namespace spank_container {

/// Data that srun and the tasks of its step exchange without Slurm's help: srun uses variables of
/// the step that no program sees, failing tasks use a socket.

/// Reads a variable of the job, whose environment differs from slurmstepd's.
bool variable_of_job(const char* name, std::string& value, void* spank);

// --- in srun, sbatch and salloc ---

/// Returns the options read since the last call: srun calls once per component of a heterogeneous
/// step.
std::vector<GivenOption> given_to_this_component();

/// Passes each component's options to the nodes, if components have different options. Returns the
/// reason if that is impossible, otherwise an empty text.
std::string keep_components_apart(const std::vector<GivenOption>& given);

/// Starts resolving the tag of the component's image, once for all nodes of the step.
void ask_for_tag(spc_runtime* runtime, const spc_options& options);
/// Passes the resolved tags to the nodes of a heterogeneous step before its environment is created.
/// Other steps pass them as late as possible.
void tell_tags_of_components();

/// Passes to the nodes the address at which srun will listen for their errors, and for nodes that
/// lack the image (spc_tracker_open). Call it before the step's environment is created: later, a
/// variable reaches one component only.
void listen_to_nodes(const spc_summary& summary);

/// Sets limits of the step that prevent a node from executing its command unless the plugin there
/// has called allow_command(). A node without the plugin ignores the container options and would
/// execute the command on the host.
void forbid_command();

// --- in a task ---

/// Restores the limits replaced by forbid_command().
void allow_command(spank_t spank);

/// Returns the resolved tags sent by srun, for spc_options, and removes the variable.
std::string take_tags(spank_t spank);
/// Returns the address where srun listens for nodes that lack the image, for spc_options, and
/// removes the variable.
std::string take_tracker(spank_t spank);

/// Replaces the options passed by Slurm, which are the last component's, with those of the task's
/// own component. Returns the reason if the component cannot be found, otherwise an empty text.
/// `is_component`: the components of the step differ.
std::string take_own_component(spank_t spank, bool& is_component);

/// Connection data of the step's srun.
class SrunThatListens {
 public:
  /// Reads and removes the variable with srun's address.
  static std::optional<SrunThatListens> of_this_step(spank_t spank);
  /// Sends this node's error to srun. Returns false if srun did not accept it and will not print
  /// it.
  [[nodiscard]] bool takes(const char* error) const;
  /// Makes srun exit with status 1 if its tasks succeed.
  void fail() const;

 private:
  [[nodiscard]] static bool is_wanted();

  std::string host_, node_;
  bool is_for_one_node_ = false;
  ReportAddress address_;
};

}  // namespace spank_container
