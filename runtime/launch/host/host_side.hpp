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
#include "task/furnish.hpp"

namespace spc {

/// A file or directory of the host, opened as the user, or a tmpfs, to be mounted.
struct OpenedSource {
  UniqueFd path;            ///< of a tmpfs: none
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
  std::uint64_t size = 0;   ///< tmpfs: bytes; 0: as large as the writable layer may be
  std::string asked_by;     ///< as for MountPlan
};

/// What the leading task gathers on the host as the user: the sources, and what to make of them inside.
struct HostSide {
  std::vector<OpenedSource> sources;
  Furniture furniture;

  /// Says who asked for the sources that came since it was said last.
  void added_for(const std::string& whom);
  [[nodiscard]] std::vector<MountPlan> mounts() const;
};
enum class ContainerState { is_new, runs };

/// Opens what is at `source` with the user's rights alone: root_squash, FUSE and private directories need nothing more.
Result<void> add_source(HostSide& side, const std::string& source, const std::string& target, std::uint32_t flags,
                        const std::string& shown_as);
/// A new file system of `size` bytes; 0: as large as the writable layer may be.
void add_tmpfs(HostSide& side, const std::string& target, std::uint32_t flags, std::uint64_t size, std::optional<unsigned> mode,
               const std::string& shown_as);

/// To a container that runs already only what the step asks for is added.
/// `home`: the user's home directory if it shall be mounted (or, with --container-contain, covered), else empty. `environment`: the
/// job's. A mount that may be missing, and is, makes a warning in `log`. `before_mounts` adds what the mounts that were asked
/// for may cover.
Result<HostSide> gather(const LaunchRequest& request, const std::string& home,
                        const std::map<std::string, std::string>& environment, Log& log,
                        ContainerState state = ContainerState::is_new,
                        const std::function<Result<void>(HostSide&)>& before_mounts = {});

/// Where Slurm forwards the user's display (srun --x11): the file that lets programs in, which lies where the container has a
/// /tmp or a home of its own.
void add_display(HostSide& side, const std::map<std::string, std::string>& job_environment);

/// What should appear at one place of the container appears at another.
void move_placement(Furniture& furniture, const std::string& from, const std::string& to);

/// The manifest that this (canonical) reference is known to stand for and need not be asked about now, if it is public.
/// Nothing is known that `import` has not seen since the site's rules are what they are.
std::optional<Digest> known_manifest(const std::string& ref_file_name, bool immutable, PullPolicy pull,
                                     const PolicyRecord& policy);

}  // namespace spc
