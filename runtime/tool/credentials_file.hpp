#pragma once

#include <string>

#include "base/result.hpp"

namespace spc {

/// Puts credentials into the file that `docker login` and `podman login` use: $REGISTRY_AUTH_FILE if it is set, else
/// docker's config.json. It is replaced in one step and readable by its owner alone; what else it says stays. Returns its
/// path. Refused where a credential helper keeps this registry's secrets: they would lie in the file unprotected.
Result<std::string> store_credentials(const std::string& registry, const std::string& user, const std::string& password);

/// The opposite. Empty: there were none.
Result<std::string> remove_credentials(const std::string& registry);

}  // namespace spc
