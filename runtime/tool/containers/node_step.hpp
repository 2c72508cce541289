#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "tool/images/obtain.hpp"
#include "tool/places.hpp"

namespace spc {

/// What root wants to run, in terms of runtime.h.
struct StepOptions {
  std::string image;
  std::vector<std::string> mounts;
  std::string workdir;
  std::vector<std::string> env;
  std::vector<std::string> devices;  ///< CDI names
  int writable = -1;    ///< SPC_UNSET, SPC_NO, SPC_YES
  int mount_home = -1;  ///< the same
  std::string pull;
  bool quiet = false;
  bool verbose = false;
};

/// As root: the container that a job step of root would get, from the node's store, by the same agent and kernel mounts.
/// It ends when this object is destroyed and nobody is in it any more.
class NodeStep {
 public:
  static Result<NodeStep> open(const std::string& image, bool quiet);
  NodeStep(NodeStep&& other) noexcept;
  NodeStep& operator=(NodeStep&&) = delete;
  ~NodeStep();

  /// Moves this process, a child of the one that opened the step, into it; changes `environment` to the container's.
  Result<void> enter(const StepOptions& options, std::map<std::string, std::string>& environment);

 private:
  struct State;
  explicit NodeStep(State* state) : state_(state) {}
  State* state_;
};

/// As root: pulls an image into the node's store and returns its digest.
Result<Digest> pull_into_node_store(const Places& places, const Config& config, const Wanted& wanted);

}  // namespace spc
