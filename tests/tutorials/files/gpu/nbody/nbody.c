/* Gravity between bodies, on processors: `nbody -benchmark -numbodies=N`. Only 32 of them are
 * attracted, so that the tutorials' two million take a second. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char** argv) {
  long bodies = 4096;
  const int attracted = 32;
  for (int i = 1; i < argc; ++i)
    if (strncmp(argv[i], "-numbodies=", 11) == 0) bodies = atol(argv[i] + 11);
  float* at = malloc(3 * sizeof *at * (size_t)bodies);
  for (long i = 0; i < 3 * bodies; ++i) at[i] = (float)(i * 7 % 1001) / 1001;
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  double sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < attracted; ++i)
    for (long j = 0; j < bodies; ++j) {
      const float x = at[3 * j] - at[3 * i], y = at[3 * j + 1] - at[3 * i + 1];
      const float z = at[3 * j + 2] - at[3 * i + 2], square = x * x + y * y + z * z + 1e-3f;
      sum += x / (square * sqrtf(square));
    }
  clock_gettime(CLOCK_MONOTONIC, &end);
  const double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
  const double pairs = (double)bodies * attracted;
  printf("%ld bodies, of which %d are attracted: %.3f ms (sum %.3g)\n", bodies, attracted, ms, sum);
  printf("= %.3f single-precision GFLOP/s at 20 flops per interaction\n", pairs * 20 / ms / 1e6);
  free(at);
  return 0;
}
