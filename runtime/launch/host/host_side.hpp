#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/mount_plan.hpp"
#include "protocol/policy.hpp"
#include "task/root/root_setup.hpp"

namespace spc {

/// A mount source: a file or directory of the host, opened as the user, or a tmpfs.
struct OpenedSource {
  UniqueFd path;             ///< empty for a tmpfs
  std::uint32_t flags = 0;   ///< TaskMessage::SourceFlags
  std::uint64_t size = 0;    ///< tmpfs: bytes; 0: the size limit of the writable layer
  std::uint64_t inodes = 0;  ///< tmpfs: files; 0: as the kernel does
  std::string asked_by;      ///< as for MountPlan
};

/// What the leader collects on the host as the user: the sources, and what to do with them in the
/// container.
struct HostSide {
  std::vector<OpenedSource> sources;
  RootSetup root;

  /// Sets the origin of the sources added since the last call.
  void added_for(const std::string& whom);
  [[nodiscard]] std::vector<MountPlan> mounts() const;
};
enum class ContainerState { is_new, runs };

/// Opens `source` with the user's rights only: this works with root_squash, FUSE and private
/// directories.
Result<void> add_source(HostSide& side, const std::string& source, const std::string& target,
                        std::uint32_t flags, const std::string& shown_as);
/// A tmpfs of `size` bytes; 0: the size limit of the writable layer.
void add_tmpfs(HostSide& side, const std::string& target, std::uint32_t flags, std::uint64_t size,
               std::optional<unsigned> mode, const std::string& shown_as);

/// Returns whether the home directory can be mounted or, if `is_hidden`, covered by a tmpfs in
/// every image. An Error says why not: it would cover the image, there is none, or it is not a
/// directory.
Result<void> check_home(const std::string& home, bool is_hidden);

/// For a running container, only what this step requests is added.
/// `home`: the user's home directory if it is mounted (or, with --container-contain, hidden),
/// otherwise empty. `environment`: the job's. A missing optional mount causes a warning in `log`.
/// `before_mounts` adds what the requested mounts may cover.
Result<HostSide> gather(const LaunchRequest& request, const std::string& home,
                        const std::map<std::string, std::string>& environment, Log& log,
                        ContainerState state = ContainerState::is_new,
                        const std::function<Result<void>(HostSide&)>& before_mounts = {});

/// Where Slurm forwards the user's display (srun --x11): the X authority file, which is where the
/// container has its own /tmp or home.
void add_display(HostSide& side, const std::map<std::string, std::string>& job_environment);

/// Mounts one path of the container at another.
void move_mount_target(RootSetup& root, const std::string& from, const std::string& to);

/// How sure of a tag one has to be.
struct TagDemand {
  bool immutable = false;  ///< it is a digest
  PullPolicy pull = PullPolicy::missing;
  std::optional<std::int64_t> since;  ///< as in LaunchRequest
  std::optional<Digest>
      meant;  ///< only this manifest will do, or what this index leads to: however old that is
};

/// The manifest that this name (ref_file_of() a reference) is known to resolve to without a query,
/// if it is public. Nothing is known that `import` has not checked under the site's current rules.
std::optional<Digest> known_manifest(const std::string& name, const TagDemand& demand,
                                     const PolicyRecord& policy);

}  // namespace spc
