#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/facts/facts.hpp"
#include "image/registry/manifest.hpp"

namespace spc::tool {

/// Nodes on which a job may run: what config.toml says of them.
struct NodeKind {
  std::string where;  ///< for messages: `partition "gpu"`, or `this cluster`
  NodesConfig nodes;
};

/// One for each of the partitions, `a,b`; none given: of the default partition, which slurm.conf
/// tells. `constraint`: names joined by & or commas that all its nodes have; of others nothing is
/// known.
std::vector<NodeKind> kinds_of_nodes(const Config& config, const std::string& partitions,
                                     std::string_view constraint);

/// An image as it is known before it is pulled.
struct KnownImage {
  std::string name;
  Digest digest;
  ImageConfig config;
  std::vector<Fact> facts;
};

/// Refuses an image that does not fit these nodes. What is only doubtful is a warning.
Result<std::vector<std::string>> check_fit(const KnownImage& image, const NodeKind& kind);

}  // namespace spc::tool
