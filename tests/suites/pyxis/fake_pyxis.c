/* A stand-in for NVIDIA's pyxis where its source is missing: a plugin of that name with the same
   options, which reach a node as pyxis's do. On a node it starts no container: it prints what it
   was given, and its tasks fail. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

static char given[4096];

static int note(const char* name, const char* value) {
  size_t used = strlen(given);
  snprintf(given + used, sizeof given - used, " --%s%s%s", name, value != NULL ? "=" : "",
           value != NULL ? value : "");
  return 0;
}

#define OPTION(function, name)                                  \
  static int function(int val, const char* value, int remote) { \
    return (void)val, (void)remote, note(name, value);          \
  }
OPTION(on_image, "container-image")
OPTION(on_mounts, "container-mounts")
OPTION(on_workdir, "container-workdir")
OPTION(on_name, "container-name")
OPTION(on_save, "container-save")
OPTION(on_env, "container-env")
OPTION(on_unshare, "container-unshare")
OPTION(on_flag, "container-flag")

static struct spank_option options[] = {
    {"container-image", "IMAGE", "fake", 1, 0, on_image},
    {"container-mounts", "SRC:DST", "fake", 1, 0, on_mounts},
    {"container-workdir", "PATH", "fake", 1, 0, on_workdir},
    {"container-name", "NAME", "fake", 1, 0, on_name},
    {"container-save", "PATH", "fake", 1, 0, on_save},
    {"container-mount-home", NULL, "fake", 0, 1, on_flag},
    {"no-container-mount-home", NULL, "fake", 0, 0, on_flag},
    {"container-remap-root", NULL, "fake", 0, 1, on_flag},
    {"no-container-remap-root", NULL, "fake", 0, 0, on_flag},
    {"container-entrypoint", NULL, "fake", 0, 1, on_flag},
    {"no-container-entrypoint", NULL, "fake", 0, 0, on_flag},
    {"container-entrypoint-log", NULL, "fake", 0, 1, on_flag},
    {"container-writable", NULL, "fake", 0, 1, on_flag},
    {"container-readonly", NULL, "fake", 0, 0, on_flag},
    {"container-env", "NAME", "fake", 1, 0, on_env},
    {"container-unshare", "NS", "fake", 1, 1, on_unshare},
};

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  (void)argc, (void)argv;
  if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR &&
      spank_context() != S_CTX_REMOTE)
    return 0;
  for (size_t i = 0; i < sizeof options / sizeof *options; ++i) {
    if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char** argv) {
  (void)spank, (void)argc, (void)argv;
  if (given[0] == '\0') return 0;
  slurm_spank_log("pyxis: stand-in was given%s", given);
  return -1;
}
