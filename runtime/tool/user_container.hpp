#pragma once

#include <map>
#include <string>

#include "base/result.hpp"
#include "base/user_namespace.hpp"
#include "launch/environment.hpp"
#include "launch/launch.hpp"
#include "launch/user_identity.hpp"
#include "tool/image_mount.hpp"

namespace spc {

/// Who the user is in the container: himself, or root with /root as his home.
UserIdentity identity_inside(RootMap map);

/// What hooks of enroot see, and whether they count whatever config.toml says: they do where the command enroot was called.
struct OfEnroot {
  std::map<std::string, std::string> environment;
  bool hooks = false;
};

/// Takes the calling process into the mounted image, as the first task of a step goes into its container: mounts of the
/// host, /proc, /sys, /dev, a private /tmp, names of user and groups, work directory; then gives up the way to any
/// privilege. The process must be a child of the one that mounted the image. Changes `environment` to the container's.
/// Gives back the settings, those in the image's files included.
Result<ImageSettings> enter_user_container(const MountedImage& image, const LaunchRequest& request, ImageSettings settings,
                                           RootMap map, const OfEnroot& of_enroot,
                                           std::map<std::string, std::string>& environment, Log& log);

}  // namespace spc
