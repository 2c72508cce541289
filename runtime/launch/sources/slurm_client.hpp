#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "task/root_setup.hpp"

namespace spc {

/// Mounts for --container-slurm, with which Slurm's commands work regardless of the image's
/// libraries.
///
/// Under /run/spank-container/slurm are mounts of the host's programs and libraries, and a table of
/// their paths. At each command's own path, such as /usr/bin/srun, is our static program
/// container-helper, which reads the table and executes the host's command with the host's loader
/// and libraries. Plugins, configuration and the sockets for authentication keep their host paths,
/// which are compiled in.
struct SlurmClient {
  struct Bind {
    std::string source;
    std::string target;
  };
  std::vector<Bind> binds;                  ///< read-only, in order
  std::string table;                        ///< content of kSlurmTable
  std::vector<std::string> passwd_entries;  ///< of users named in Slurm's configuration
  std::string why_not;  ///< reason why there is no client on this node; empty if there is one
};

inline constexpr char kSlurmTable[] =
    "/run/spank-container/slurm/table";  ///< lines `KEY VALUE`: loader, libraries, commands
inline constexpr char kSlurmRoot[] = "/run/spank-container/slurm/root";  ///< prefix of host paths

inline constexpr char kSlurmStubs[] =
    "/run/spank-container/commands";  ///< last directory of PATH, if it has any command

/// The command of a step that executes the image's own program: its entrypoint with the other
/// arguments, or with the arguments that the image sets. A program of this name in kSlurmStubs,
/// container-helper, executes the words of the variable, each as SIZE:WORD, and its own arguments.
inline constexpr char kOwnProgram[] = "@run";
inline constexpr char kOwnProgramVariable[] = "SLURM_SCONTAINER_PROGRAM";

/// Adds, in kSlurmStubs, scripts of the names of Slurm's commands. They report that the container
/// does not have the command, and how to get it. The image's own commands precede them in PATH.
void add_slurm_stubs(RootSetup& root);

/// Finds Slurm's files. Call it in a task, a fork of slurmstepd, on the host: the libraries mapped
/// by this process show where Slurm's are. `environment` is the job's.
SlurmClient find_slurm_client(const std::map<std::string, std::string>& environment);

/// The library directories, and the loader, in the lines of a /proc/PID/maps.
struct MappedLibraries {
  std::string loader;
  std::vector<std::string> directories;  ///< in order of appearance
  std::string plugins;                   ///< Slurm's plugin directory; empty: none is mapped
};
MappedLibraries mapped_libraries(std::string_view maps);

}  // namespace spc
