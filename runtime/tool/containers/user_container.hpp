#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/process/user_namespace.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "launch/hooks/hook_edits.hpp"
#include "launch/spec/environment.hpp"
#include "request/options.hpp"
#include "task/user_identity.hpp"
#include "tool/images/image_mount.hpp"

namespace spc::tool {

// --- user container ---

/// Returns the user's identity in the container: the user, or root with home /root.
UserIdentity identity_inside(RootMap map);

/// Environment of enroot hooks, and whether they run regardless of config.toml, as for the command
/// enroot.
struct OfEnroot {
  std::map<std::string, std::string> environment;
  bool hooks = false;
};

/// Returns the site's settings with the resulting enroot_compat and user_hooks.
SitePolicy site_for(const OfEnroot& of_enroot);

/// A container after set-up: what its tasks need in addition to entering it.
struct MadeContainer {
  UniqueFd mounts;         ///< its mount namespace
  ImageSettings settings;  ///< including those in the image's files
  HookEdits edits;         ///< by hooks
  StepHooks hooks;         ///< for begin_task() in the same process
  std::vector<ShownMount> shown;  ///< its mounts, for --explain
};

/// Sets up the container of the mounted image, as the leader of a step does: host mounts, /proc,
/// /sys, /dev, a private /tmp, user and group names. Moves the calling process into it, which must
/// be a child of the process that mounted the image. `environment` is the host's.
Result<MadeContainer> make_user_container(const MountedImage& image, const LaunchRequest& request,
                                          ImageSettings settings, RootMap map,
                                          const OfEnroot& of_enroot,
                                          const std::map<std::string, std::string>& environment,
                                          const SitePolicy& site, Log& log);

/// Completes a task in the container: work directory, environment and no_new_privs. `hooks` and
/// `user` were created outside the container: by make_user_container(), or by task_on_host() and
/// identity_inside(). Changes `environment` to the container's. `explained`: origin of the files,
/// mounts and whether it is writable, which --explain prints.
Result<void> begin_task(const LaunchRequest& request, const ImageSettings& settings,
                        const HookEdits& edits, StepHooks& hooks, RootMap map, UserIdentity user,
                        std::map<std::string, std::string>& environment,
                        const ContainerSpec& explained, Log& log);

// --- shared container ---

/// A container shared by several processes of this machine: its namespaces and the data needed to
/// join it.
struct SharedContainer {
  UniqueFd user, mounts;        ///< namespaces
  std::string image, settings;  ///< image name; image record for ImageSettings::parse
  std::string edits;            ///< HookEdits
  std::shared_ptr<void> alive;  ///< creator only: must outlive the container
  UniqueFd place;               ///< joining process: keeps the container alive while open
  bool failed = false;          ///< joining process: another process reported a failed set-up
};

/// Returns the container for `key`, shared by this user's processes. The first caller starts a
/// separate process, the keeper. It sets up the container, passes it to each caller and exits after
/// the last of them. No caller depends on another, and a killed caller counts as gone. `make` runs
/// in the keeper. Its error is reported to the first caller only.
///
/// Callers meet at a socket in the abstract namespace. The kernel grants its name to one process at
/// a time and releases it when that process ends.
Result<SharedContainer> join_shared_container(const std::string& key,
                                              const std::function<Result<SharedContainer>()>& make);

}  // namespace spc::tool
