/* Two ranks send messages of four sizes to and fro, 50 times each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) printf("message size   transfertime    bandwidth\n");
  for (int bytes = 32; bytes <= 8388608; bytes *= 64) {
    char* buffer = calloc(1, (size_t)bytes);
    double begin = 0;
    for (int i = -1; i < 50; ++i) {
      if (i == 0) begin = MPI_Wtime();
      if (rank == 0) MPI_Send(buffer, bytes, MPI_CHAR, 1, 17, MPI_COMM_WORLD);
      MPI_Recv(buffer, bytes, MPI_CHAR, 1 - rank, rank ? 17 : 23, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (rank == 1) MPI_Send(buffer, bytes, MPI_CHAR, 0, 23, MPI_COMM_WORLD);
    }
    const double us = (MPI_Wtime() - begin) * 1e6 / 100;
    if (rank == 0) printf("%d bytes  %f usec  %f MB/s\n", bytes, us, bytes / us);
    free(buffer);
  }
  MPI_Finalize();
  return 0;
}
