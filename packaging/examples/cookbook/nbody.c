/* Bodies that attract each other: every rank moves its part, all ranks know all places. ./nbody
 * BODIES STEPS */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  double x, y, z, mass;
} Body;

static const double kSoft = 1e-2, kStep = 1e-3;
static const double kFlops =
    30; /* of one interaction in double precision, as it is usually counted */

/* The same for any number of ranks. */
static double random_number(unsigned* state) {
  *state = *state * 1664525U + 1013904223U;
  return (*state >> 8) / (double)(1 << 24) - 0.5;
}

static void pull(const Body* all, int bodies, int first, int count, double* speed) {
  for (int i = 0; i < count; ++i) {
    const Body me = all[first + i];
    double x = 0, y = 0, z = 0;
    for (int j = 0; j < bodies; ++j) {
      const double dx = all[j].x - me.x, dy = all[j].y - me.y, dz = all[j].z - me.z;
      const double square = dx * dx + dy * dy + dz * dz + kSoft;
      const double weight = all[j].mass / (square * sqrt(square));
      x += weight * dx, y += weight * dy, z += weight * dz;
    }
    speed[3 * i] += kStep * x, speed[3 * i + 1] += kStep * y, speed[3 * i + 2] += kStep * z;
  }
}

static double energy_of(const Body* all, int bodies, int first, int count, const double* speed) {
  double energy = 0, sum = 0;
  for (int i = 0; i < count; ++i) {
    const Body me = all[first + i];
    const double* v = speed + 3 * i;
    energy += me.mass * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]) / 2;
    for (int j = 0; j < bodies; ++j) {
      const double dx = all[j].x - me.x, dy = all[j].y - me.y, dz = all[j].z - me.z;
      if (j != first + i)
        energy -= me.mass * all[j].mass / sqrt(dx * dx + dy * dy + dz * dz + kSoft) / 2;
    }
  }
  MPI_Allreduce(&energy, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int steps = argc > 2 ? atoi(argv[2]) : 10;
  const int count = ((argc > 1 ? atoi(argv[1]) : 4096) + ranks - 1) / ranks, bodies = count * ranks,
            first = rank * count;
  Body* all = malloc(bodies * sizeof *all);
  double* speed = calloc(3 * (size_t)count, sizeof *speed);
  if (all == NULL || speed == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  unsigned state = 1;
  for (int i = 0; i < bodies; ++i) {
    all[i].x = random_number(&state), all[i].y = random_number(&state),
    all[i].z = random_number(&state);
    all[i].mass = 1.0 / bodies;
  }

  const double before = energy_of(all, bodies, first, count, speed);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int step = 0; step < steps; ++step) {
    pull(all, bodies, first, count, speed);
    for (int i = 0; i < count; ++i) {
      Body* me = all + first + i;
      me->x += kStep * speed[3 * i], me->y += kStep * speed[3 * i + 1],
          me->z += kStep * speed[3 * i + 2];
    }
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 4 * count, MPI_DOUBLE, MPI_COMM_WORLD);
  }
  const double took = MPI_Wtime() - begin;
  const double after = energy_of(all, bodies, first, count, speed);
  if (rank == 0) {
    printf("%d bodies, %d steps, %d ranks: %.2f GFLOP/s\n", bodies, steps, ranks,
           kFlops * bodies * bodies * steps / took / 1e9);
    printf("energy %.9f, changed by %.1e\n", after, fabs((after - before) / before));
    fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
