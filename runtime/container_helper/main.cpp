#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hook_engine/enroot_mount.hpp"
#include "launch/sources/slurm_client.hpp"

namespace spc {

// --- modes ---

/// The modes of `container-helper`. Each function gets the arguments of main and returns the exit
/// status.

/// Mode `/proc/self/fd/N FD`, which an image's entrypoint executes in place of the user's command.
/// Writes its work directory and its environment, each text ended by NUL, into the memory file FD
/// and seals it. Only a sealed file is complete.
int probe_entrypoint(int argc, char** argv);

/// Mode `NAME MODE SCRIPT [ARGUMENT]...`: in a container, the program that Slurm executes between
/// itself and a task prolog. From 23.11 on Slurm starts scripts through slurmstepd itself, whose
/// libraries containers lack; the plugin substitutes this program.
int launch_script(int argc, char** argv);

/// Mounted in a container at the path of each of Slurm's commands: executes the host's command
/// `name` with the host's loader and libraries, so that the image needs neither
/// (launch/sources/slurm_client.hpp).
int run_slurm_command(const std::string& name, char** argv);

// --- entrypoint probe ---

namespace {

bool write_text(int fd, const char* text) {
  for (size_t left = std::strlen(text) + 1; left > 0;) {
    const ssize_t written = ::write(fd, text, left);
    if (written <= 0) return false;
    text += written;
    left -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

int probe_entrypoint(int argc, char** argv) {
  if (argc < 2) return 2;
  const int fd = std::atoi(argv[1]);
  char directory[PATH_MAX];
  bool written = write_text(fd, ::getcwd(directory, sizeof directory) != nullptr ? directory : "");
  for (char** variable = environ; written && *variable != nullptr; ++variable)
    written = write_text(fd, *variable);
  return written && ::fcntl(fd, F_ADD_SEALS,
                            F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0
             ? 0
             : 1;
}

// --- script launcher ---

int launch_script(int argc, char** argv) {
  if (argc < 3) return 127;
  ::setpgid(0, 0);
  ::close_range(3, ~0U, 0);
  ::execve(argv[2], argc > 3 ? argv + 3 : argv + 2, environ);
  return 127;
}

// --- slurm command ---

namespace {

int refuse(const std::string& name, const char* why) {
  std::fprintf(stderr, "spank-container: %s: %s (hint: start the step with --container-slurm)\n",
               name.c_str(), why);
  return 127;
}

/// Prefixes each directory with the host's part.
std::string under_root(const std::string& directories) {
  std::string moved;
  for (std::size_t at = 0; at < directories.size();) {
    const std::size_t end = std::min(directories.find(':', at), directories.size());
    moved +=
        (moved.empty() ? "" : ":") + std::string(kSlurmRoot) + directories.substr(at, end - at);
    at = end + 1;
  }
  return moved;
}

/// Moves a new step out of the image's directories. A step starts in srun's work directory. A
/// directory of the image does not exist on the host, and Slurm would report that twice for each
/// node. So srun changes to the directory in which the job was submitted. --chdir and the user's
/// own settings take precedence.
void start_steps_outside_the_image() {
  struct stat root {};
  struct stat here {};
  const char* submitted = std::getenv("SLURM_SUBMIT_DIR");
  if (submitted == nullptr || ::stat("/", &root) != 0 || ::stat(".", &here) != 0 ||
      root.st_dev != here.st_dev)
    return;
  ::setenv("SLURM_WORKING_DIR", submitted, 0);
}

}  // namespace

int run_slurm_command(const std::string& name, char** argv) {
  std::map<std::string, std::string> table;
  std::ifstream file(kSlurmTable);
  std::string key;
  std::string value;
  while (file >> key && std::getline(file >> std::ws, value)) table[key] = value;
  if (!table.contains(name)) return refuse(name, "no such Slurm command in this container");

  // Variables of the image or the user are for programs of the image: the host's loader would load
  // such libraries into Slurm's command.
  for (const char* variable : {"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"}) ::unsetenv(variable);
  if (name == "srun") start_steps_outside_the_image();
  const std::string loader = kSlurmRoot + table["loader"];
  const std::string program = kSlurmRoot + table[name];
  const std::string libraries = under_root(table["libraries"]);
  std::vector<const char*> arguments{loader.c_str(), "--inhibit-cache", "--library-path",
                                     libraries.c_str(), program.c_str()};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) arguments.push_back(*argument);
  arguments.push_back(nullptr);
  ::execve(loader.c_str(), const_cast<char* const*>(arguments.data()), ::environ);
  return refuse(name, "the host's program cannot be executed");
}

}  // namespace spc

// --- main ---

// /usr/libexec/spank-container/container-helper: one static program that containers and hooks
// execute, independent of the libraries there. It runs with the user's rights only.
//   mounted at the path of a Slurm command   that command
//   enroot/enroot-mount, a link to it        mounts for enroot's hooks
//   /proc/self/fd/N                          the probe behind an image's entrypoint
//   any other name                           in slurmstepd's place, the launcher of a task prolog

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
