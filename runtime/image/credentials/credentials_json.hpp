#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/json.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// What a file in the form of docker's config.json or podman's auth.json says about an image, in this order: a helper that
/// `credHelpers` names for the registry, the entry in `auths` whose name fits best, the helper of `credsStore`. Of `user`
/// only, unless that is empty. `path` names the file in messages.
Result<std::optional<RegistrySecret>> secret_in_json(const Json& file, const std::string& path, const ImageReference& image,
                                                     const std::string& user);

/// The helper that keeps this registry's credentials: what stands behind `docker-credential-`. Empty: the file does.
Result<std::string> helper_for(const Json& file, const std::string& path, const ImageReference& image);

/// What docker calls a registry towards helpers and in `auths`: HOST[:PORT], but a URL for Docker Hub.
std::string docker_name_of(const std::string& registry);

/// Asks `docker-credential-HELPER get`. Empty: it knows no credentials for this registry.
Result<std::optional<RegistrySecret>> ask_helper(const std::string& helper, const std::string& registry);

}  // namespace spc
