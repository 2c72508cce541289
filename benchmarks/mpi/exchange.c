/* Measures the MPI that it is linked with, as the OSU micro-benchmarks do: windows and iterations
 * are theirs. JSON lines of rank 0.
 *
 *   exchange          with 2 ranks or more: latency and bandwidth are between the first and the
 * last, allreduce of all
 *
 * init: from main to the end of the first barrier, the slowest rank. Ends by itself after 5
 * minutes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kWindow = 64, kMost = 4 << 20, kLarge = 8192 };

static int rank, size, peer;
static char *out, *in;

static double latency_us(int bytes) {
  const int skip = bytes > kLarge ? 10 : 100, rounds = bytes > kLarge ? 1000 : 10000;
  double begin = 0;
  for (int i = 0; i < skip + rounds; ++i) {
    if (i == skip) begin = MPI_Wtime();
    if (rank == 0) {
      MPI_Send(out, bytes, MPI_CHAR, peer, 1, MPI_COMM_WORLD);
      MPI_Recv(in, bytes, MPI_CHAR, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == peer) {
      MPI_Recv(in, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(out, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
  }
  return (MPI_Wtime() - begin) * 1e6 / (2.0 * rounds);
}

static double bandwidth_mbs(int bytes) {
  const int skip = bytes > kLarge ? 2 : 10, rounds = bytes > kLarge ? 20 : 100;
  MPI_Request requests[kWindow];
  char acknowledged = 0;
  double begin = 0;
  for (int i = 0; i < skip + rounds; ++i) {
    if (i == skip) begin = MPI_Wtime();
    if (rank == 0) {
      for (int j = 0; j < kWindow; ++j)
        MPI_Isend(out, bytes, MPI_CHAR, peer, 2, MPI_COMM_WORLD, &requests[j]);
      MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
      MPI_Recv(&acknowledged, 1, MPI_CHAR, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == peer) {
      for (int j = 0; j < kWindow; ++j)
        MPI_Irecv(in, bytes, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &requests[j]);
      MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
      MPI_Send(&acknowledged, 1, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
    }
  }
  return (double)bytes * kWindow * rounds / (MPI_Wtime() - begin) / 1e6;
}

static double allreduce_us(int bytes) {
  const int skip = bytes > kLarge ? 10 : 100, rounds = bytes > kLarge ? 100 : 1000;
  double begin = 0;
  memset(out, 0, (size_t)bytes);
  for (int i = 0; i < skip + rounds; ++i) {
    if (i == skip) {
      MPI_Barrier(MPI_COMM_WORLD);
      begin = MPI_Wtime();
    }
    MPI_Allreduce(out, in, bytes / (int)sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  const double mine = (MPI_Wtime() - begin) * 1e6 / rounds;
  double sum = 0;
  MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  return sum / size;
}

static void say(const char* name, int bytes, double value) {
  if (rank == 0)
    printf("{\"name\": \"%s\", \"bytes\": %d, \"value\": %.4f, \"ranks\": %d}\n", name, bytes,
           value, size);
}

int main(int argc, char** argv) {
  static const int latency_sizes[] = {1, 64, 1024, 8192, 65536, 1 << 20};
  static const int bandwidth_sizes[] = {1024, 8192, 65536, 1 << 20, kMost};
  struct timespec begin, end;
  alarm(300);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  MPI_Init(&argc, &argv);
  MPI_Barrier(MPI_COMM_WORLD);
  clock_gettime(CLOCK_MONOTONIC, &end);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  peer = size - 1;
  if (size < 2) MPI_Abort(MPI_COMM_WORLD, 2);
  const double mine =
      (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
  double slowest = 0;
  MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  say("init", 0, slowest);
  out = malloc(kMost);
  in = malloc(kMost);
  memset(out, 1, kMost);
  memset(in, 2, kMost);
  for (size_t i = 0; i < sizeof latency_sizes / sizeof *latency_sizes; ++i) {
    say("latency", latency_sizes[i], latency_us(latency_sizes[i]));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  for (size_t i = 0; i < sizeof bandwidth_sizes / sizeof *bandwidth_sizes; ++i) {
    say("bandwidth", bandwidth_sizes[i], bandwidth_mbs(bandwidth_sizes[i]));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  static const int allreduce_sizes[] = {8, 1 << 20};
  for (size_t i = 0; i < sizeof allreduce_sizes / sizeof *allreduce_sizes; ++i)
    say("allreduce", allreduce_sizes[i], allreduce_us(allreduce_sizes[i]));
  MPI_Finalize();
  return 0;
}
