#pragma once

/// The processes that work together: those of MPI (ranks_mpi.cpp), or this one alone
/// (ranks_alone.cpp).
namespace spc::bench {

class Ranks {
 public:
  Ranks();
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  int rank = 0, count = 1;
  int local_rank = 0;  ///< on its node
  const char* kind;    ///< what connects them, for people
  /// Of all ranks, on all of them.
  [[nodiscard]] double sum(double own) const;
  [[nodiscard]] double largest(double own) const;
  void wait_for_all() const;
};

}  // namespace spc::bench
