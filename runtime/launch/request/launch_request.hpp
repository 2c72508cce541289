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

/// The user's request, with checked syntax.
struct LaunchRequest {
  std::string image;                  ///< may be empty if there is a name
  std::vector<std::string> features;  ///< options in use, for the site's rules
  std::vector<MountSpec> mounts;
  std::string workdir;           ///< empty: the image's
  std::optional<bool> writable;  ///< empty: the site's default
  std::optional<bool> mount_home;
  std::optional<PullPolicy> pull;    ///< when to query the registry; empty: the site's default
  std::optional<Platform> platform;  ///< empty: the node's
  bool verbose = false;              ///< print a timing breakdown
  EnvironmentWishes environment;
  std::optional<ContainerName> name;
  std::string save;                      ///< file to write the container to; empty: none
  std::uint32_t namespaces = 0;          ///< NamespaceBits but own_user
  std::optional<MemorySize> tmpfs_size;  ///< of each writable part; empty: the site's default
  std::vector<std::string> mounts_off;   ///< paths of the node that the site keeps to itself
  std::string max_tmpfs_size;            ///< that the site allows; empty: no limit
  std::optional<bool> remap_root;        ///< empty: the site's default, as for the next
  std::optional<bool> entrypoint;
  bool entrypoint_log = false;
  bool contain = false;  ///< hide the user's files
  std::string
      seccomp;  ///< profile of system calls: "default", or an absolute path; empty: only the site's
  bool private_layer = false;        ///< each task has its own container
  std::optional<bool> slurm;         ///< make Slurm's commands work; empty: the site's default
  bool explain = false;              ///< dry run
  bool only_pull = false;            ///< no container
  bool begins_job = false;           ///< at submission: the job is not there yet
  std::vector<std::string> command;  ///< of the task, for the dry run
  std::string batch;                 ///< script, steps, or empty: the site's default
  std::optional<bool> gpu;  ///< inject GPUs; empty: if the step has any and the site allows it
  std::vector<std::string> devices;  ///< CDI names
  std::string mpi;                   ///< image, host, or empty: the site's default
  std::optional<std::set<std::string>>
      granted_devices;            ///< nodes that the step may open, if determined from its cgroup
  MessageStyle* style = nullptr;  ///< the caller's; follows the site's settings once they are known
  std::vector<std::string> overrides;  ///< of the site's settings: KEY=VALUE
  std::optional<std::int64_t>
      since;             ///< when the job was submitted, in seconds since 1970, if that is known
  std::string resolved;  ///< what tags stand for, as srun says: resolved_tag()
  std::string meeting;   ///< where srun listens: the value of kMeetingVariable; empty: it does not
  std::uint32_t nodes = 1;  ///< of the step
  std::string
      batch_script;  ///< of a batch step: Slurm's copy of the script, mounted at the same path
};

}  // namespace spc
