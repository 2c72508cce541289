// `script-launcher MODE SCRIPT [ARGUMENT]...`: in a container, what Slurm executes between itself and a task prolog.
//
// From 23.11 on Slurm starts scripts through slurmstepd itself, whose libraries no container has. The plugin puts this program,
// which needs none, in its place (task_prolog.cpp).
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc < 3) return 127;
  ::setpgid(0, 0);
  ::close_range(3, ~0U, 0);
  ::execve(argv[2], argc > 3 ? argv + 3 : argv + 2, environ);
  return 127;
}
