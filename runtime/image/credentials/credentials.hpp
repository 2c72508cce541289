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

/// What the user shows to the registry of `image`, from the first of his files that knows it (CredentialPlaces). Only the
/// credentials of that registry are looked at or asked for. A file that cannot be used is a warning if another one
/// answers, and the error if none does.
Result<std::optional<RegistrySecret>> find_credentials(const CredentialPlaces& places, const ImageReference& image,
                                                       const std::string& user, Log& log);

/// Answers UserSourceKind::credentials on `socket`. A question about another registry than that of `image`, which the
/// user named himself, is refused: `import` must not be able to collect what it has no use for.
Result<void> answer_credentials(int socket, const UserSourceMessage& question, const ImageReference& image, Log& log);

}  // namespace spc
