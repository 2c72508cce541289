"""Small programs that do with device nodes what the vendors' libraries do where it decides: in their order, and with their view of
errno. A fake node has nothing behind it, so opening one says ENXIO if everybody lets, and that counts as success."""
import functools

from fake_driver import compiled

OPENED = r"""
#define _DEFAULT_SOURCE  // with _GNU_SOURCE, glibc 2.38 and newer make sscanf need GLIBC_2.38
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int error_of_open(const char *path, int how) {
  int fd = open(path, how | O_CLOEXEC);
  if (fd >= 0) close(fd);
  return fd >= 0 || errno == ENXIO ? 0 : errno;
}

static long number_in(const char *path, const char *format) {
  char line[256];
  long number = -1;
  FILE *file = fopen(path, "re");
  while (file && number < 0 && fgets(line, sizeof line, file)) sscanf(line, format, &number);
  if (file) fclose(file);
  return number;
}

static int is_name(const struct dirent *entry) { return entry->d_name[0] != '.'; }
"""

# mknod_helper() of nvidia-modprobe-utils.c looks at a node's file before it is opened: one that is not the driver's it removes and
# makes anew, which only root can. cuInit: 100 is CUDA_ERROR_NO_DEVICE, 999 CUDA_ERROR_UNKNOWN.
CUDA = OPENED + r"""
static int error_of(const char *path, int how, unsigned major, unsigned minor) {
  struct stat status;
  if (stat(path, &status)) return errno;
  if (!S_ISCHR(status.st_mode) || status.st_rdev != makedev(major, minor)) {
    printf("%s is not the driver's node; ", path);
    return remove(path) ? errno : ENOENT;
  }
  return error_of_open(path, how);
}

/* A process has an instance of MIG if it can open the nodes of its GPU instance and of its compute instance, for reading. */
static void print_parts(long gpu) {
  for (int gi = 0; gi < 15; ++gi) {
    char path[128];
    int open_nodes = 0;
    const char *files[] = {"access", "ci0/access"};
    for (int i = 0; i < 2; ++i) {
      snprintf(path, sizeof path, "/proc/driver/nvidia/capabilities/gpu%ld/mig/gi%d/%s", gpu, gi, files[i]);
      long minor = number_in(path, "DeviceFileMinor: %ld");
      snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%ld", minor);
      open_nodes += minor >= 0 && error_of(path, O_RDONLY, 242, (unsigned)minor) == 0;
    }
    if (open_nodes == 2) printf(" %ld:gi%d", gpu, gi);
  }
}

int main(void) {
  int error = error_of("/dev/nvidiactl", O_RDWR, 195, 255);
  if (error) return printf("cuInit 100: /dev/nvidiactl: %s\n", strerror(error)), 0;
  struct dirent **gpus;
  int seen = 0, count = scandir("/proc/driver/nvidia/gpus", &gpus, is_name, alphasort);
  printf("GPUs");
  for (int i = 0; i < count; ++i) {
    char path[128];
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%.64s/information", gpus[i]->d_name);
    long minor = number_in(path, "Device Minor: %ld");
    snprintf(path, sizeof path, "/dev/nvidia%ld", minor);
    if (minor < 0 || error_of(path, O_RDWR, 195, (unsigned)minor)) continue;
    ++seen;
    printf(" %ld", minor);
    print_parts(minor);
  }
  error = error_of("/dev/nvidia-uvm", O_RDWR, 240, 0);
  if (error) return printf(", cuInit 999: /dev/nvidia-uvm: %s\n", strerror(error)), 0;
  printf(", cuInit %d\n", seen ? 0 : 100);
}
"""

# topology_sysfs_get_node_id() and what follows it in libhsakmt's topology.c: a render node that is missing or denied by the cgroup is
# passed over, any other error ends hsa_init. Then ROCr keeps what ROCR_VISIBLE_DEVICES lists, up to the first that it does not have.
HSA = OPENED + r"""
int main(void) {
  int error = error_of_open("/dev/kfd", O_RDWR), count = 0;
  long found[64];
  char path[128];
  if (error) return printf("hsa_init 4104: /dev/kfd: %s\n", strerror(error)), 0;
  for (int node = 0; count < 64; ++node) {
    snprintf(path, sizeof path, "/sys/class/kfd/kfd/topology/nodes/%d/properties", node);
    if (access(path, F_OK)) break;
    long minor = number_in(path, "drm_render_minor %ld");
    if (minor <= 0) continue;
    snprintf(path, sizeof path, "/dev/dri/renderD%ld", minor);
    error = error_of_open(path, O_RDWR);
    if (error == 0) found[count++] = minor;
    else if (error != ENOENT && error != EPERM) return printf("hsa_init 4104: %s: %s\n", path, strerror(error)), 0;
  }
  const char *visible = getenv("ROCR_VISIBLE_DEVICES");
  printf("hsa_init 0, GPUs");
  for (int i = 0; !visible && i < count; ++i) printf(" %ld", found[i]);
  char *list = visible ? strdup(visible) : NULL;
  for (char *word = list ? strtok(list, ",") : NULL; word; word = strtok(NULL, ",")) {
    char *end;
    long number = strtol(word, &end, 10);
    if (*end || number < 0 || number >= count) break;
    printf(" %ld", found[number]);
  }
  printf("\n");
}
"""


@functools.cache
def cuda():
    """/cuda: the minor numbers of the GPUs that cuInit finds, in the order of the bus, with their parts."""
    return compiled(CUDA)


@functools.cache
def hsa():
    """/hsa: the render nodes that hsa_init finds, as ROCm counts them."""
    return compiled(HSA)
