#include <mpi.h>

#include "ranks.hpp"

namespace spc::bench {

Ranks::Ranks() : kind("MPI") {
  MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_free(&node);
}
Ranks::~Ranks() { MPI_Finalize(); }

double Ranks::sum(double own) const {
  double all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

double Ranks::largest(double own) const {
  double all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

void Ranks::wait_for_all() const { MPI_Barrier(MPI_COMM_WORLD); }

}  // namespace spc::bench
