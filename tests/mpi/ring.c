/* Talks between all ranks and says how it went: one line of rank 0, or nothing and a status other
 * than 0.
 *
 *   ring [MIB]        also exchanges messages of MIB (default 8) between neighbours: large enough
 * for single copies
 *
 * Ends by itself after 40 s: what goes wrong between ranks mostly hangs. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char* what) {
  fprintf(stderr, "ring: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

static int count_hosts(int rank, int size) {
  char name[MPI_MAX_PROCESSOR_NAME] = "", *names = NULL;
  int length, hosts = 0;
  MPI_Get_processor_name(name, &length);
  if (rank == 0) names = calloc((size_t)size, sizeof name);
  MPI_Gather(name, sizeof name, MPI_CHAR, names, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
  for (int i = 0; rank == 0 && i < size; ++i) {
    int known = 0;
    for (int j = 0; j < i; ++j)
      known |= strcmp(names + (size_t)i * sizeof name, names + (size_t)j * sizeof name) == 0;
    hosts += !known;
  }
  free(names);
  return hosts;
}

/* A token that every rank adds itself to. */
static void pass_token(int rank, int size) {
  long token = 0;
  if (size == 1) return;
  if (rank != 0) MPI_Recv(&token, 1, MPI_LONG, rank - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  token += rank;
  MPI_Send(&token, 1, MPI_LONG, (rank + 1) % size, 1, MPI_COMM_WORLD);
  if (rank != 0) return;
  MPI_Recv(&token, 1, MPI_LONG, size - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (token != (long)size * (size - 1) / 2) fail("the token is wrong");
}

static void exchange(int rank, int size, size_t bytes) {
  unsigned char *out = malloc(bytes), *in = malloc(bytes);
  const int right = (rank + 1) % size, left = (rank + size - 1) % size;
  for (int round = 0; round < 3; ++round) {
    memset(out, rank + round, bytes);
    MPI_Sendrecv(out, (int)bytes, MPI_BYTE, right, 2, in, (int)bytes, MPI_BYTE, left, 2,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (size_t i = 0; i < bytes; i += 511) {
      if (in[i] != (unsigned char)(left + round)) fail("a message came with other bytes");
    }
  }
  free(out);
  free(in);
}

int main(int argc, char** argv) {
  int rank, size, sum = 0, local_size;
  alarm(40);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm local;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  MPI_Comm_size(local, &local_size);
  const int hosts = count_hosts(rank, size);
  pass_token(rank, size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (sum != size * (size - 1) / 2) fail("the sum is wrong");
  exchange(rank, size, (size_t)(argc > 1 ? atoi(argv[1]) : 8) << 20);
  if (rank == 0) printf("ring of %d on %d hosts, %d share memory\n", size, hosts, local_size);
  MPI_Comm_free(&local);
  MPI_Barrier(MPI_COMM_WORLD);
#ifndef WITHOUT_FINALIZE
  MPI_Finalize();
#else
  fflush(stdout);
  for (double end = MPI_Wtime() + 0.1; MPI_Wtime() < end;)
    MPI_Iprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &sum, MPI_STATUS_IGNORE);
  _exit(0);
#endif
  return 0;
}
