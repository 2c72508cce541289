#pragma once

#include <cstdint>

#include "hooks/hook.hpp"

namespace spc {

/// The size of a step according to Slurm; a batch script is one task.
struct StepSize {
  std::uint32_t tasks = 1, nodes = 1;
  std::uint32_t tasks_here = 1;  ///< on this node
  std::uint32_t gpus = 0;        ///< on this node

  static StepSize of(const HookContext& context);
  /// Whether there is more than one process to communicate.
  [[nodiscard]] bool is_several() const { return tasks > 1 || gpus > 1; }
  [[nodiscard]] bool has_neighbours() const { return tasks_here > 1 || gpus > 1; }
};

}  // namespace spc
