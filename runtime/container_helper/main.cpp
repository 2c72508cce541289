// /usr/libexec/spank-container/container-helper: one static program for what is executed in
// containers and by hooks, whatever libraries are there. It runs as the user and may do nothing
// that the user may not.
//   mounted at the path of a Slurm command   that command
//   enroot/enroot-mount, a link to it        mounts for enroot's hooks
//   /proc/self/fd/N                          the probe behind an image's entrypoint
//   any other name                           in slurmstepd's place, the launcher of a task prolog

#include <unistd.h>

#include <climits>
#include <string>
#include <string_view>

#include "container_helper/modes.hpp"
#include "hook_engine/enroot_mount/enroot_mount.hpp"

namespace {

std::string last_part(std::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

}  // namespace

int main(int argc, char** argv) {
  char self[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", self, sizeof self);
  const std::string lies_at = last_part({self, size > 0 ? static_cast<std::size_t>(size) : 0});
  const std::string_view called = argc > 0 ? argv[0] : "";
  if (!lies_at.empty() && !lies_at.starts_with("container-helper"))
    return spc::run_slurm_command(lies_at, argv);
  if (last_part(called) == "enroot-mount") return spc::enroot_mount(argc, argv);
  if (called.starts_with("/proc/self/fd/")) return spc::probe_entrypoint(argc, argv);
  return spc::launch_script(argc, argv);
}
