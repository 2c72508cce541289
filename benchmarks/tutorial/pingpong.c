/* Sends messages of four sizes to and fro between two ranks, as the tutorials on MPI in containers
 * do. Rank 0 prints a JSON line for each size: half a round trip, and bytes over that time.
 *
 * Ends by itself after 2 minutes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kLargest = 8 << 20 };

/* 50 as in the tutorials, more of small messages: 50 of them take some microseconds. */
static int round_trips(int bytes) { return bytes < 128 << 10 ? 1000 : 50; }

static void round_trip(char* buffer, int bytes, int rank) {
  if (rank == 0) MPI_Send(buffer, bytes, MPI_CHAR, 1, 17, MPI_COMM_WORLD);
  MPI_Recv(buffer, bytes, MPI_CHAR, 1 - rank, rank == 0 ? 23 : 17, MPI_COMM_WORLD,
           MPI_STATUS_IGNORE);
  if (rank == 1) MPI_Send(buffer, bytes, MPI_CHAR, 0, 23, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  static const int sizes[] = {32, 2048, 128 << 10, kLargest};
  int rank = 0, size = 0;
  alarm(120);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 2) {
    fprintf(stderr, "pingpong: needs 2 ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  char* buffer = malloc(kLargest);
  memset(buffer, 1, kLargest);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    const int rounds = round_trips(sizes[i]);
    round_trip(buffer, sizes[i], rank);
    const double begin = MPI_Wtime();
    for (int j = 0; j < rounds; ++j) round_trip(buffer, sizes[i], rank);
    const double us = (MPI_Wtime() - begin) * 1e6 / (2.0 * rounds);
    if (rank == 0)
      printf("{\"bytes\": %d, \"us\": %.4f, \"mbs\": %.4f}\n", sizes[i], us, sizes[i] / us);
  }
  MPI_Finalize();
  free(buffer);
  return 0;
}
