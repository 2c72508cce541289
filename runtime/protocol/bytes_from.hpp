#pragma once

#include <cstdint>

namespace spc {

enum class CameFrom { registry, mirror, node, shared };

/// Bytes of an image's layers, by source.
struct BytesFrom {
  std::uint64_t registry = 0;
  std::uint64_t nodes = 0;   ///< from other nodes of the step
  std::uint64_t shared = 0;  ///< from the shared store
  std::uint64_t mirrors = 0;

  void add(CameFrom from, std::uint64_t bytes) {
    switch (from) {
      case CameFrom::registry: registry += bytes; break;
      case CameFrom::mirror: mirrors += bytes; break;
      case CameFrom::node: nodes += bytes; break;
      case CameFrom::shared: shared += bytes; break;
    }
  }
  BytesFrom& operator+=(const BytesFrom& other) {
    registry += other.registry, mirrors += other.mirrors, nodes += other.nodes,
        shared += other.shared;
    return *this;
  }
};

/// Prefix of lines of `import` that are for slurmd's log and not for the user. The agent and older
/// leaders pass them on like any other line.
inline constexpr char kPullRecord[] = "pull record: ";

}  // namespace spc
