#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

// --- launch key ---

/// Returns a key shared by all processes of one parallel launch on this machine, and by no others.
/// It is derived from the variables of Open MPI's mpirun, Hydra (MPICH, Intel MPI) and srun. Empty
/// if the process was launched alone or its launcher is unknown.
std::string launch_key(const std::map<std::string, std::string>& environment);

// --- job step ---

/// Returns whether `text` is JOB or JOB.STEP.
bool names_job(const std::string& text);

/// Becomes srun, which runs the command in the container of this step, beside the step's tasks. JOB
/// means the job's latest step. The command gets its own terminal if the caller has one. Returns
/// only an Error.
Error become_step_in(const std::string& job, const std::vector<std::string>& command);

// --- node step ---

/// As root: a container such as a job step of root gets, from the node's store, with the same agent
/// and kernel mounts. It ends when this object is destroyed and no process is left in it.
class NodeStep {
 public:
  static Result<NodeStep> open(const std::string& image, bool quiet);
  NodeStep(NodeStep&& other) noexcept;
  NodeStep& operator=(NodeStep&&) = delete;
  ~NodeStep();

  /// Moves this process, a child of the one that opened the step, into the container. Changes
  /// `environment` to the container's. `options`: options of a job, NAME=VALUE or NAME. `command`
  /// is shown by --explain.
  Result<void> enter(const std::vector<std::string>& options,
                     std::map<std::string, std::string>& environment,
                     const std::vector<std::string>& command) {
    return enter(options, environment, command, false);
  }
  /// Pulls the image into the store without starting a container. The process exits with status 0
  /// when the pull is complete. Returns only an Error.
  Error pull(const std::vector<std::string>& options);

 private:
  struct State;
  explicit NodeStep(State* state) : state_(state) {}
  Result<void> enter(const std::vector<std::string>& options,
                     std::map<std::string, std::string>& environment,
                     const std::vector<std::string>& command, bool only_pull);
  State* state_;
};

/// As root: pulls an image into the node's store and returns its digest.
Result<Digest> pull_into_node_store(const Places& places, const Config& config,
                                    const PullRequest& wanted);

}  // namespace spc::tool
