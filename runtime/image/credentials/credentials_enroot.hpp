#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// The credentials for an image's registry in enroot's .credentials: the first line
/// `machine HOST login USER password PASSWORD` whose HOST matches (with or without the registry's
/// port; auth.docker.io stands for Docker Hub) and whose USER is `user`, unless that is empty.
///
/// USER is taken literally (`$oauthtoken`). A PASSWORD that starts with `$` is expanded as in
/// enroot:
///  - `$NAME`, `${NAME}`: an environment variable;
///  - `$(PROGRAM ARGUMENTS)` of plain words: the program's output; it is executed without a shell;
///  - anything else: expanded by /bin/sh.
/// Programs run as the user, for at most 30 seconds, and only if nobody else can write the file
/// (`may_run`).
Result<std::optional<RegistrySecret>> secret_in_enroot(std::string_view text,
                                                       const std::string& path,
                                                       const ImageReference& image,
                                                       const std::string& user, bool may_run);

}  // namespace spc
