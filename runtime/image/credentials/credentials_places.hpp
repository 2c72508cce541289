#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// Where a user stores credentials. They are searched in this order; the first that has some for
/// the registry (and the user, if one is named) is used:
///
///  1. $REGISTRY_AUTH_FILE
///  2. $XDG_RUNTIME_DIR/containers/auth.json, or /run/containers/UID/auth.json    what `podman
///  login` writes
///  3. $XDG_CONFIG_HOME/containers/auth.json, or ~/.config/containers/auth.json
///  4. $DOCKER_CONFIG/config.json, or ~/.docker/config.json                       what `docker
///  login` writes
///  5. $ENROOT_CONFIG_PATH/.credentials, or $XDG_CONFIG_HOME/enroot/.credentials, or
///  ~/.config/enroot/.credentials
struct CredentialPlaces {
  std::vector<std::string> json_files;  ///< 1 to 4, each once
  std::string named_file;               ///< 1, if the variable is set
  std::string docker_file;              ///< 4
  std::string enroot_file;              ///< 5

  /// From the environment of this process.
  static CredentialPlaces of_user();
};

/// The file's text, at most 1 MiB; empty if there is none. It may be a link to a regular file. A
/// world-readable file causes a warning.
Result<std::optional<SecretText>> read_credential_file(const std::string& path, Log& log);

/// How well a name in one of the files matches: 0 not at all, higher if more specific.
/// `HOST[:PORT]`, the same with a prefix of the repository, or a URL, of which the host is used.
/// All names of Docker Hub are equal.
std::size_t fit_of(std::string_view key, const ImageReference& image);

}  // namespace spc
