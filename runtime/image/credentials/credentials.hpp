#pragma once

#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/credentials/credentials_places.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/secret.hpp"
#include "protocol/user_source.hpp"

namespace spc {

/// The user's credentials for the registry of `image`, from the first of the user's files that has
/// some (CredentialPlaces). Only credentials of that registry are read or requested. An unusable
/// file causes a warning if another one has credentials, and the error otherwise.
Result<std::optional<RegistrySecret>> find_credentials(const CredentialPlaces& places,
                                                       const ImageReference& image,
                                                       const std::string& user, Log& log);

/// Answers UserSourceKind::credentials on `socket`. A request for another registry than that of
/// `image`, which the user named, is refused: `import` must not be able to collect unrelated
/// credentials.
Result<void> answer_credentials(int socket, const UserSourceMessage& question,
                                const ImageReference& image, Log& log);

}  // namespace spc
