#pragma once

#include <cstdint>

#include "hooks/hook.hpp"

namespace spc {

/// How large a step is, as Slurm tells it; the script of a batch job is one task.
struct StepSize {
  std::uint32_t tasks = 1, nodes = 1;
  std::uint32_t tasks_here = 1;  ///< on this node
  std::uint32_t gpus = 0;        ///< of this node

  static StepSize of(const HookContext& context);
  /// Whether there is anybody to talk to.
  [[nodiscard]] bool is_several() const { return tasks > 1 || gpus > 1; }
  [[nodiscard]] bool has_neighbours() const { return tasks_here > 1 || gpus > 1; }
};

}  // namespace spc
