#pragma once

#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/credentials/credentials_places.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// Keeps what a user shows to one registry (HOST[:PORT]): in the first file that has something for it already, or else in
/// $REGISTRY_AUTH_FILE, or else in docker's config.json; by the credential helper that this file names, if it does. A file
/// is replaced in one step with mode 0600; its other entries stay. Gives back where it is kept now: a path or a program.
Result<std::string> store_credentials(const CredentialPlaces& places, const std::string& registry, const RegistrySecret& secret,
                                      Log& log);

/// Forgets it everywhere but in enroot's .credentials, which belongs to the user alone: an entry there is warned of. Gives
/// back where it was found; empty: nowhere.
Result<std::vector<std::string>> remove_credentials(const CredentialPlaces& places, const std::string& registry, Log& log);

}  // namespace spc
