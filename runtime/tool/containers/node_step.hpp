#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

/// As root: the container that a job step of root would get, from the node's store, by the same
/// agent and kernel mounts. It ends when this object is destroyed and nobody is in it any more.
class NodeStep {
 public:
  static Result<NodeStep> open(const std::string& image, bool quiet);
  NodeStep(NodeStep&& other) noexcept;
  NodeStep& operator=(NodeStep&&) = delete;
  ~NodeStep();

  /// Takes this process, a child of the one that opened the step, inside; changes `environment` to
  /// the container's. `options` are those of a job: NAME=VALUE or NAME.
  Result<void> enter(const std::vector<std::string>& options,
                     std::map<std::string, std::string>& environment) {
    return enter(options, environment, false);
  }
  /// The same process ends, with status 0, when the image is in the store; there is no container
  /// then. Returns an Error only.
  Error pull(const std::vector<std::string>& options);

 private:
  struct State;
  explicit NodeStep(State* state) : state_(state) {}
  Result<void> enter(const std::vector<std::string>& options,
                     std::map<std::string, std::string>& environment, bool only_pull);
  State* state_;
};

/// As root: pulls an image into the node's store and returns its digest.
Result<Digest> pull_into_node_store(const Places& places, const Config& config,
                                    const Wanted& wanted);

}  // namespace spc::tool
