#pragma once

#include <optional>
#include <string>

#include "base/json/json.hpp"
#include "base/result.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// The credentials for an image in a file of the format of docker's config.json or podman's
/// auth.json, in this order: the helper in `credHelpers` for the registry, the best matching entry
/// in `auths`, the helper in `credsStore`. Of `user` only, unless that is empty. `path` names the
/// file in messages.
Result<std::optional<RegistrySecret>> secret_in_json(const Json& file, const std::string& path,
                                                     const ImageReference& image,
                                                     const std::string& user);

/// The helper that stores this registry's credentials: the suffix of `docker-credential-`. Empty:
/// the file does.
Result<std::string> helper_for(const Json& file, const std::string& path,
                               const ImageReference& image);

/// docker's name of a registry for helpers and in `auths`: HOST[:PORT], but a URL for Docker Hub.
std::string docker_name_of(const std::string& registry);

/// Runs `docker-credential-HELPER get`. Empty: it has no credentials for this registry.
Result<std::optional<RegistrySecret>> ask_helper(const std::string& helper,
                                                 const std::string& registry);

}  // namespace spc
