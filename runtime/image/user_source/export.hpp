#pragma once

#include <string>

#include "base/log.hpp"
#include "image/user_source/file_part.hpp"

namespace spc {

/// These write an image of the user's own storage, or of the node's docker daemon, into a temporary file: an archive with
/// this image alone.

/// `podman save`, or skopeo where podman is not installed. Run as the user, without a shell.
Result<FilePart> export_from_podman(const std::string& image, Log& log);

/// Asks the docker engine at the socket that $DOCKER_HOST names (unix://PATH), or at /var/run/docker.sock.
Result<FilePart> export_from_docker(const std::string& image, Log& log);

}  // namespace spc
