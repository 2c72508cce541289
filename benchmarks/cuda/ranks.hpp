#pragma once

/// The cooperating processes: those of MPI (ranks_mpi.cpp), or only this one (ranks_alone.cpp).
namespace spc::bench {

class Ranks {
 public:
  Ranks();
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  int rank = 0, count = 1;
  int local_rank = 0;  ///< rank on its node
  const char* kind;    ///< their connection, for the output
  /// Returns the sum over all ranks, on each of them.
  [[nodiscard]] double sum(double own) const;
  [[nodiscard]] double largest(double own) const;
  void wait_for_all() const;
};

}  // namespace spc::bench
