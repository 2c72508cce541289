#pragma once

#include <string>

#include "base/log.hpp"
#include "image/user_source/file_part.hpp"

namespace spc::user_source {

/// These export an image of the user's storage, or of the node's docker daemon, to a temporary
/// file: an archive of this image only.

/// `podman save`, or skopeo where podman is not installed. Run as the user, without a shell.
Result<FilePart> export_from_podman(const std::string& image, Log& log);

/// From the docker engine at the socket in $DOCKER_HOST (unix://PATH), or at /var/run/docker.sock.
Result<FilePart> export_from_docker(const std::string& image, Log& log);

}  // namespace spc::user_source
