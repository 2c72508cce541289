#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bandwidth.hpp"

namespace spc::bench {

/// Ranks that exchange floats: GPUs by NCCL (nccl.cpp), or threads, which check the arithmetic
/// (threads.cpp).
class Exchange {
 public:
  virtual ~Exchange() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int ranks() const = 0;
  [[nodiscard]] virtual int rank() const = 0;  ///< rank 0 prints
  /// Returns the seconds of one exchange, the mean of `iterations` and of the ranks, after
  /// `warm_up` of them. `count`: floats of each rank. `wrong`: number of wrong floats of all ranks.
  virtual double run(Collective collective, std::size_t count, int warm_up, int iterations,
                     std::size_t& wrong) = 0;
};

std::unique_ptr<Exchange> threads(int ranks);
/// Makes this process one rank, from RANK, WORLD_SIZE and LOCAL_RANK, or from SLURM_PROCID,
/// SLURM_NTASKS and SLURM_LOCALID. Without them it is the only one. Ranks find each other by a file
/// in `meeting`, a directory that all of them see. Without a GPU or NCCL, returns nullptr and sets
/// `why`.
std::unique_ptr<Exchange> nccl(const std::string& library, const std::string& meeting,
                               std::string& why);

}  // namespace spc::bench
