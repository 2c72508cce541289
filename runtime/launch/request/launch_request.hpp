#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "image/reference/request.hpp"
#include "launch/request/container_name.hpp"
#include "launch/request/environment_wishes.hpp"
#include "launch/request/memory_size.hpp"
#include "launch/request/messages.hpp"
#include "launch/request/mount_spec.hpp"

namespace spc {

/// What the user asked for, checked for form only.
struct LaunchRequest {
  std::string image;                  ///< may be empty where there is a name
  std::vector<std::string> features;  ///< options that are used, for the site's rules about them
  std::vector<MountSpec> mounts;
  std::string workdir;           ///< empty: the image's
  std::optional<bool> writable;  ///< empty: the site's default
  std::optional<bool> mount_home;
  std::optional<PullPolicy> pull;    ///< when the registry is asked; empty: the site's default
  std::optional<Platform> platform;  ///< empty: the node's
  bool verbose = false;              ///< say where the time of an import went
  EnvironmentWishes environment;
  std::optional<ContainerName> name;
  std::string save;                      ///< the file that the container becomes; empty: none
  std::uint32_t namespaces = 0;          ///< NamespaceBits but own_user
  std::optional<MemorySize> tmpfs_size;  ///< of each part that can be written; empty: the site's limit
  std::optional<bool> remap_root;        ///< empty: the site's default, as for the next
  std::optional<bool> entrypoint;
  bool entrypoint_log = false;
  bool contain = false;              ///< nothing of the user's inside
  bool private_layer = false;        ///< each task has its own container
  std::optional<bool> slurm;         ///< Slurm's commands work inside; empty: the site's default
  bool explain = false;              ///< say what would be executed, and do not
  std::vector<std::string> command;  ///< of the task, to be explained
  std::string batch;                 ///< script, steps, or empty: the site's default
  std::optional<bool> gpu;           ///< what makes GPUs work inside; empty: if the step has any and the site lets
  std::vector<std::string> devices;  ///< names of CDI
  std::string mpi;                   ///< whose MPI: image, host, or empty: the site's default
  std::optional<std::set<std::string>> granted_devices;  ///< nodes that the step may open, if they were looked for in its cgroup
  MessageStyle* style = nullptr;       ///< the caller's; follows the site's settings as soon as the agent has them
  std::vector<std::string> overrides;  ///< of the site's settings: KEY=VALUE
  std::string batch_script;            ///< of a batch step: Slurm's copy of the script, shown inside at the same place
};

}  // namespace spc
