/* A program of another day: built against a runtime.h with fewer or with more members than the
 * library's. */
#include <spank_container/runtime.h>

#include <stdio.h>
#include <string.h>

#define POISON 0x5a

static int failures;

static void expect(int good, const char* promise, const spc_runtime* rt) {
  if (good) return;
  failures++;
  printf("%s: %s\n", promise, spc_error_message(rt));
}

int main(void) {
  /* Memory behind the members that the caller knows is not the caller's: following it would crash.
   */
  struct {
    struct spc_options options;
    char behind[64];
  } memory;
  spc_runtime* rt = NULL;
  const char* const image[] = {"container-image=debian:12", NULL};
  const char* const mounts[] = {"container-image=debian:12", "container-mounts=/scratch",
                                "container-mounts=data", NULL};
  if (spc_open(NULL, NULL, &rt) != SPC_OK) return 2;

  memset(&memory, POISON, sizeof memory);
  memory.options.size = offsetof(struct spc_options, variables);
  memory.options.given = image;
  expect(spc_check(rt, &memory.options) == SPC_OK, "accepts options that end with what was given",
         rt);

  memory.options.size = offsetof(struct spc_options, batch_script);
  memory.options.variables = NULL;
  memory.options.given = mounts;
  expect(spc_check(rt, &memory.options) == SPC_E_INVALID,
         "sees the mounts of options that end with the variables", rt);
  expect(strstr(spc_error_message(rt), "data") != NULL, "names the mount that it refuses", rt);

  memset(&memory.options, 0, sizeof memory.options);
  memory.options.given = image;
  memory.options.size = sizeof memory;
  expect(spc_check(rt, &memory.options) == SPC_OK,
         "accepts options with members of a later version", rt);

  memory.options.size = 0;
  expect(spc_check(rt, &memory.options) == SPC_E_INVALID, "refuses options without a size", rt);
  expect(spc_check(rt, NULL) == SPC_E_INVALID, "refuses missing options", rt);
  expect(spc_check(NULL, &memory.options) == SPC_E_INVALID, "refuses a missing handle", NULL);
  expect(strcmp(spc_version(), "") != 0, "says its version", rt);

  spc_close(rt);
  spc_close(NULL);
  return failures != 0;
}
