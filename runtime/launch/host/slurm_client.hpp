#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// What --container-slurm brings inside, so that Slurm's commands work there whatever libraries the image has, or has not.
///
/// Under kSlurmPlace lie copies of the mounts of the host's programs and libraries, and a table of where things are. At each
/// command's own path, for example /usr/bin/srun, lies our static program slurm-command, which reads that table and executes
/// the host's command with the host's loader and libraries. Plugins, configuration and munge's socket are where the host has
/// them, since their paths are compiled in.
struct SlurmClient {
  struct Bind {
    std::string source;
    std::string target;
  };
  std::vector<Bind> binds;                  ///< read-only, in this order
  std::string table;                        ///< text for kSlurmTable
  std::vector<std::string> passwd_entries;  ///< of users that Slurm's configuration names
  std::string why_not;                      ///< not empty: there is no client on this node, for this reason
};

inline constexpr char kSlurmPlace[] = "/run/spank-container/slurm";
inline constexpr char kSlurmTable[] = "/run/spank-container/slurm/table";  ///< lines `KEY VALUE`: loader, libraries, commands
inline constexpr char kSlurmRoot[] = "/run/spank-container/slurm/root";    ///< the host's paths begin here

/// To be called in a task, a fork of slurmstepd, on the host: the libraries that this process has mapped tell where Slurm's
/// are. `environment` is the job's.
SlurmClient find_slurm_client(const std::map<std::string, std::string>& environment);

/// The directories of libraries, and the loader, among the lines of a /proc/PID/maps.
struct MappedLibraries {
  std::string loader;
  std::vector<std::string> directories;  ///< in the order of their first appearance
  std::string plugins;                   ///< the directory of Slurm's plugins; empty: none is mapped
};
MappedLibraries mapped_libraries(std::string_view maps);

}  // namespace spc
