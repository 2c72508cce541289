#pragma once

#include <map>
#include <string>

#include "base/process/user_namespace.hpp"
#include "base/result.hpp"
#include "launch/hooks/prepared_hooks.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/environment.hpp"
#include "task/user_identity.hpp"
#include "tool/images/image_mount.hpp"

namespace spc::tool {

/// The user's identity in the container: the user, or root with home /root.
UserIdentity identity_inside(RootMap map);

/// What enroot hooks see, and whether they run whatever config.toml says, as for the command
/// enroot.
struct OfEnroot {
  std::map<std::string, std::string> environment;
  bool hooks = false;
};

/// The site's settings, with the resulting enroot_compat and user_hooks.
SitePolicy site_for(const OfEnroot& of_enroot);

/// Result of setting up a container: what its tasks need besides being in it.
struct MadeContainer {
  UniqueFd mounts;         ///< its mount namespace
  ImageSettings settings;  ///< including those in the image's files
  TaskEdits edits;         ///< of hooks
  TaskHooks hooks;         ///< for begin_task() in the same process
};

/// Sets up the container of the mounted image, as the leader of a step does: host mounts, /proc,
/// /sys, /dev, a private /tmp, user and group names; and moves the calling process into it, which
/// must be a child of the one that mounted the image. `environment` is the host's.
Result<MadeContainer> make_user_container(const MountedImage& image, const LaunchRequest& request,
                                          ImageSettings settings, RootMap map,
                                          const OfEnroot& of_enroot,
                                          const std::map<std::string, std::string>& environment,
                                          const SitePolicy& site, Log& log);

/// The remaining work of each task in the container: work directory, environment, and no_new_privs.
/// `hooks` and `user` come from outside: from make_user_container(), or from before_entering() and
/// identity_inside(). Changes `environment` to the container's.
Result<void> begin_task(const LaunchRequest& request, const ImageSettings& settings,
                        const TaskEdits& edits, TaskHooks& hooks, RootMap map, UserIdentity user,
                        std::map<std::string, std::string>& environment, Log& log);

}  // namespace spc::tool
