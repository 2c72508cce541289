#pragma once

#include <map>
#include <string>

#include "base/result.hpp"
#include "base/user_namespace.hpp"
#include "launch/hooks/step_edits.hpp"
#include "launch/host/user_identity.hpp"
#include "launch/inside/environment.hpp"
#include "launch/launch.hpp"
#include "launch/policy/site.hpp"
#include "tool/images/image_mount.hpp"

namespace spc {

/// Who the user is in the container: himself, or root with /root as his home.
UserIdentity identity_inside(RootMap map);

/// What hooks of enroot see, and whether they count whatever config.toml says: they do where the command enroot was called.
struct OfEnroot {
  std::map<std::string, std::string> environment;
  bool hooks = false;
};

/// The site's settings, with what enroot_compat and user_hooks then are.
Site site_for(const OfEnroot& of_enroot);

/// What comes of making a container: what its tasks need besides being in it.
struct MadeContainer {
  UniqueFd mounts;         ///< its mount namespace
  ImageSettings settings;  ///< those in the image's files included
  TaskEdits edits;         ///< of hooks
  HookedStart hooked;      ///< for begin_task() in the same process
};

/// Makes the container of the mounted image, as the first task of a step does: mounts of the host, /proc, /sys, /dev, a private
/// /tmp, names of user and groups; and takes the calling process into it, which must be a child of the one that mounted the
/// image. `environment` is that of the host.
Result<MadeContainer> make_user_container(const MountedImage& image, const LaunchRequest& request, ImageSettings settings,
                                          RootMap map, const OfEnroot& of_enroot,
                                          const std::map<std::string, std::string>& environment, const Site& site, Log& log);

/// What is left to do for each task when it is in the container: work directory, environment, and giving up the way to any
/// privilege. `hooked` and `user` are from outside: of make_user_container(), or what before_entering() and identity_inside()
/// made. Changes `environment` to the container's.
Result<void> begin_task(const LaunchRequest& request, const ImageSettings& settings, const TaskEdits& edits, HookedStart& hooked,
                        RootMap map, UserIdentity user, std::map<std::string, std::string>& environment, Log& log);

}  // namespace spc
