#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// What enroot's .credentials says about an image's registry: the first line `machine HOST login USER password PASSWORD`
/// whose HOST fits (with the registry's port or without; auth.docker.io stands for Docker Hub) and whose USER is `user`,
/// unless that is empty.
///
/// USER is taken as it is (`$oauthtoken`). A PASSWORD that begins with `$` is worked out as enroot does:
///  - `$NAME`, `${NAME}`: a variable of the environment;
///  - `$(PROGRAM ARGUMENTS)` of ordinary words: the program's output; it is executed without a shell;
///  - anything else: what /bin/sh makes of it.
/// Programs run as the user, for at most 30 seconds, and only if nobody else can write the file (`may_run`).
Result<std::optional<RegistrySecret>> secret_in_enroot(std::string_view text, const std::string& path,
                                                       const ImageReference& image, const std::string& user, bool may_run);

}  // namespace spc
