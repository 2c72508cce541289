/* A plugin that a user loads into srun in place of ours: the same options without checks. Its
 * arguments are the options' names, with "=" after those that take a value. */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

SPANK_PLUGIN(spank_container, 1)

static int take(int number, const char* value, int remote) {
  (void)number, (void)value, (void)remote;
  return 0;
}

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    char* equals = strchr(argv[i], '=');
    struct spank_option option = {argv[i], equals ? "VALUE" : NULL, "no checks", equals != NULL, i,
                                  take};
    if (equals) *equals = '\0';
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}
