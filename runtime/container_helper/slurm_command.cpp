#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "container_helper/modes.hpp"
#include "launch/host/slurm_client.hpp"

namespace spc {
namespace {

int refuse(const std::string& name, const char* why) {
  std::fprintf(stderr, "spank-container: %s: %s (hint: start the step with --container-slurm)\n",
               name.c_str(), why);
  return 127;
}

/// Each directory below the host's part.
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

/// A step starts in the directory where srun was; one of the image does not exist outside, and
/// Slurm would say so twice for each node. The job's own directory is then the better one. --chdir
/// and what the user has set come first.
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

  // What the image or the user put there is for programs of the image: the host's loader would load
  // it into Slurm's.
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
