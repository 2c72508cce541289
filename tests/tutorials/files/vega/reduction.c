/* The sum of an array over all ranks. The tutorial's program adds on GPUs, this one on processors. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const long all = 1 << 20, mine = all / ranks;
  double* x = calloc((size_t)mine, sizeof *x);
  for (int i = 0; i < 100; ++i)
    for (long j = 0; j < mine; ++j) x[j] += 1;
  double local = 0, sum = 0;
  for (long j = 0; j < mine; ++j) local += x[j];
  MPI_Allreduce(&local, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("The total sum of x = %g\n", sum);
  MPI_Finalize();
  return sum == (double)all * 100 ? 0 : 1;
}
