#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "launch/spec/container_spec.hpp"
#include "launch/task/task_notes.hpp"
#include "protocol/policy.hpp"
#include "request/options.hpp"
#include "task/root_setup.hpp"

namespace spc {

// --- data file ---

/// Opens a file of the user for reading, with the user's permissions. Returns an Error unless it is
/// a supported squashfs. Refuses everything except regular files without opening it, so that no
/// FIFO or device can block the task.
Result<UniqueFd> open_data_file(const std::string& path);

/// Returns an Error if the file is on a FUSE file system that the site does not allow, whichever
/// user runs its server. A server that does not respond keeps our server, and so the step, from
/// ending. This call itself may block on such a server.
Result<void> refuse_fuse(int file, const std::vector<std::string>& allowed = {});

// --- host side ---

/// Sets the origin of the mounts added since the last call.
void added_for(RootSetup& root, const std::string& whom);

enum class ContainerState { is_new, runs };

/// Opens `source` with the user's permissions only, which works with root_squash, FUSE and private
/// directories.
Result<void> add_source(RootSetup& root, const std::string& source, const std::string& target,
                        std::uint32_t flags, const std::string& shown_as);
/// Adds a tmpfs of `size` bytes; 0: the size limit of the writable layer.
void add_tmpfs(RootSetup& root, const std::string& target, std::uint32_t flags, std::uint64_t size,
               std::optional<unsigned> mode, const std::string& shown_as);

/// Checks whether the home directory can be mounted or, if `is_hidden`, covered by a tmpfs in every
/// image. The Error states the reason: it would cover the image, there is none, or it is not a
/// directory.
Result<void> check_home(const std::string& home, bool is_hidden);

/// Collects the mounts; for a running container, only those that this step requests. `home`:
/// the user's home directory if it is mounted (or, with --container-contain, hidden), otherwise
/// empty. `environment`: the job's. A missing optional source causes a warning in `log`.
/// `before_mounts` adds mounts that the requested mounts may cover.
Result<RootSetup> gather(const LaunchRequest& request, const std::string& home,
                         const std::map<std::string, std::string>& environment, Log& log,
                         ContainerState state = ContainerState::is_new,
                         const std::function<Result<void>(RootSetup&)>& before_mounts = {});

/// Adds the X authority file of a display that Slurm forwards (srun --x11), which may be in a
/// directory that the container replaces: /tmp or the home.
void add_display(RootSetup& root, const std::map<std::string, std::string>& job_environment);

/// Moves the mount target `from` in the container to `to`.
void move_mount_target(RootSetup& root, const std::string& from, const std::string& to);

/// The required certainty about a tag.
struct TagDemand {
  bool immutable = false;  ///< the reference has a digest
  PullPolicy pull = PullPolicy::missing;
  std::optional<std::int64_t> since;  ///< as in LaunchRequest
  std::optional<Digest>
      meant;  ///< accept only this manifest, or one that this index lists, of any age
};

/// Returns the manifest to which this name (ref_file_of() a reference) is known to resolve without
/// a query, if it is public. Only names that `import` has checked under the site's current rules
/// are known.
std::optional<Digest> known_manifest(const std::string& name, const TagDemand& demand,
                                     const PolicyRecord& policy);

// --- own cgroup ---

/// Implements --container-unshare=cgroup: shows only the step's cgroup at /sys/fs/cgroup,
/// read-only; outside Slurm, the caller's own. The namespace determines /proc/self/cgroup of each
/// task. Shows no cgroup if the step's is not visible.
void add_own_cgroup(RootSetup& root);

// --- own dev ---

/// For --container-contain and an IPC namespace: replaces the node's /dev with one that has the
/// standard nodes, the job's granted GPUs and the network adapters. Call it first: its targets must
/// be the first ones (RootSetup::dev_targets). The site's hooks add further nodes.
void add_own_dev(RootSetup& root, const LaunchRequest& request);

/// Returns whether `path` is a mount target already.
bool has_target(const RootSetup& root, const std::string& path);

// --- security profiles ---

/// Reads the site's and the job's seccomp profiles, on the host as the user, and compiles them into
/// programs for the tasks. Adds the site's labels if the node has the security module. `remapped`:
/// the tasks have the capabilities of their own user namespace. Empty if neither site nor job has
/// any.
Result<TaskSecurity> read_security(const LaunchRequest& request, const SitePolicy& site,
                                   bool remapped);

/// Warns if neither of the site's labels has an effect on this node.
void warn_of_idle_keys(const SitePolicy& site,
                       const std::map<std::string, std::string>& environment, Log& log);

}  // namespace spc
