#pragma once

#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/credentials/credentials_places.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// Stores a user's credentials for one registry (HOST[:PORT]): in the first file that already has
/// some for it, or in $REGISTRY_AUTH_FILE, or in docker's config.json; through the credential
/// helper that this file names, if any. A file is replaced atomically with mode 0600; its other
/// entries are kept. Returns where they are stored: a path or a program.
Result<std::string> store_credentials(const CredentialPlaces& places, const std::string& registry,
                                      const RegistrySecret& secret, Log& log);

/// Removes them everywhere except in enroot's .credentials, which the user edits manually: an entry
/// there causes a warning. Returns where they were found; empty: nowhere.
Result<std::vector<std::string>> remove_credentials(const CredentialPlaces& places,
                                                    const std::string& registry, Log& log);

}  // namespace spc
