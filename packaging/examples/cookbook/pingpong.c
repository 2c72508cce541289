/* Latency and bandwidth between rank 0 and the last one, by size of the message. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kLargest = 4 << 20 };

static double seconds_of(int rank, int other, char* buffer, int size, int rounds) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < rounds; ++i) {
    if (rank == 0) {
      MPI_Send(buffer, size, MPI_CHAR, other, 0, MPI_COMM_WORLD);
      MPI_Recv(buffer, size, MPI_CHAR, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == other) {
      MPI_Recv(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
  }
  return (MPI_Wtime() - begin) / rounds / 2;
}

int main(int argc, char** argv) {
  int rank, size, length;
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_processor_name(name, &length);
  if (size < 2) {
    fprintf(stderr, "pingpong: one rank (hint: srun --mpi=pmix -n2)\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  char* buffer = calloc(1, kLargest);
  if (buffer == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  if (rank == 0)
    printf("rank 0 on %s, %d ranks\n%12s %12s %12s\n", name, size, "bytes", "us", "MB/s");
  for (int bytes = 8; bytes <= kLargest; bytes *= 8) {
    const int rounds = bytes < 1 << 16 ? 200 : 20;
    seconds_of(rank, size - 1, buffer, bytes, rounds / 10); /* warms up */
    const double took = seconds_of(rank, size - 1, buffer, bytes, rounds);
    if (rank == 0) printf("%12d %12.2f %12.1f\n", bytes, took * 1e6, bytes / took / 1e6);
  }
  free(buffer);
  MPI_Finalize();
  return 0;
}
