#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "protocol/user_source.hpp"
#include "reference/reference.hpp"
#include "registry/challenge.hpp"

namespace spc {

// --- credential files ---

/// Files with a user's credentials. They are searched in this order; the first that has credentials
/// for the registry (and the user, if one is named) is used:
///
///  1. $REGISTRY_AUTH_FILE
///  2. $XDG_RUNTIME_DIR/containers/auth.json, or /run/containers/UID/auth.json (`podman login`)
///  3. $XDG_CONFIG_HOME/containers/auth.json, or ~/.config/containers/auth.json
///  4. $DOCKER_CONFIG/config.json, or ~/.docker/config.json (`docker login`)
///  5. $ENROOT_CONFIG_PATH/.credentials, or $XDG_CONFIG_HOME/enroot/.credentials, or
///     ~/.config/enroot/.credentials
struct CredentialPlaces {
  std::vector<std::string> json_files;  ///< 1 to 4, each once
  std::string named_file;               ///< 1, if the variable is set
  std::string docker_file;              ///< 4
  std::string enroot_file;              ///< 5

  /// Returns the paths according to the environment of this process.
  static CredentialPlaces of_user();
};

/// Returns the file's text, at most 1 MiB, or an empty optional if there is no such file. It may be
/// a link to a regular file. A world-readable file causes a warning.
Result<std::optional<SecretText>> read_credential_file(const std::string& path, Log& log);

/// Returns how well a name in one of the files matches: 0 is no match, higher is more specific. The
/// name is `HOST[:PORT]`, the same with a prefix of the repository, or a URL whose host is used.
/// All names of Docker Hub are equal.
std::size_t fit_of(std::string_view key, const ImageReference& image);

// --- JSON credential files ---

/// Returns the credentials for an image in a file in the format of docker's config.json or podman's
/// auth.json. Sources, in this order: the helper in `credHelpers` for the registry, the best
/// matching entry in `auths`, the helper in `credsStore`. Returns only those of `user` unless that
/// is empty. `path` names the file in messages.
Result<std::optional<RegistrySecret>> secret_in_json(const Json& file, const std::string& path,
                                                     const ImageReference& image,
                                                     const std::string& user);

/// Returns the helper that stores this registry's credentials, the suffix of `docker-credential-`.
/// Returns an empty string if the file stores them.
Result<std::string> helper_for(const Json& file, const std::string& path,
                               const ImageReference& image);

/// Returns docker's name of a registry for helpers and in `auths`: HOST[:PORT], but a URL for
/// Docker Hub.
std::string docker_name_of(const std::string& registry);

/// Runs `docker-credential-HELPER get`. Returns an empty optional if it has no credentials for this
/// registry.
Result<std::optional<RegistrySecret>> ask_helper(const std::string& helper,
                                                 const std::string& registry);

// --- credential commands ---

/// Result of run_command().
struct CommandOutput {
  int status = 0;  ///< exit status; 128 + signal if it was killed
  SecretText out;  ///< standard output
  /// the end of standard error as one line, printable, at most 200 characters
  std::string complaints;

  /// Returns the exit status and the complaints, for messages.
  [[nodiscard]] std::string ending() const;
};

/// Runs a program as the user, without a shell. `command[0]` is searched in PATH unless it has a
/// slash. The program gets `input`, the environment, no other descriptor and its own process group.
/// The group is killed if it exceeds `limit` or writes more than 64 KiB. Both are errors, as is a
/// program that cannot be started.
Result<CommandOutput> run_command(const std::vector<std::string>& command, std::string_view input,
                                  std::chrono::seconds limit = std::chrono::seconds(30));

// --- enroot credentials ---

/// Returns the credentials for an image's registry in enroot's .credentials: of the first line
/// `machine HOST login USER password PASSWORD` whose HOST matches (with or without the registry's
/// port; auth.docker.io means Docker Hub) and whose USER is `user`, unless that is empty.
///
/// USER is taken literally (`$oauthtoken`). A PASSWORD that starts with `$` is expanded as in
/// enroot:
///  - `$NAME`, `${NAME}`: an environment variable;
///  - `$(PROGRAM ARGUMENTS)` of plain words: the program's output; it is executed without a shell;
///  - anything else: expanded by /bin/sh.
/// Programs run as the user, for at most 30 seconds, and only if no other user can write the file
/// (`may_run`).
Result<std::optional<RegistrySecret>> secret_in_enroot(std::string_view text,
                                                       const std::string& path,
                                                       const ImageReference& image,
                                                       const std::string& user, bool may_run);

// --- credential storage ---

/// Stores a user's credentials for one registry (HOST[:PORT]): in the first file that already has
/// an entry for it, or in $REGISTRY_AUTH_FILE, or in docker's config.json. If that file names a
/// credential helper, the helper stores them. A file is replaced atomically with mode 0600; its
/// other entries are kept. Returns the file's path or the helper's name.
Result<std::string> store_credentials(const CredentialPlaces& places, const std::string& registry,
                                      const RegistrySecret& secret, Log& log);

/// Removes the credentials from all files except enroot's .credentials, which the user edits
/// manually: an entry there causes a warning. Returns the files and helpers that had them; empty if
/// there were none.
Result<std::vector<std::string>> remove_credentials(const CredentialPlaces& places,
                                                    const std::string& registry, Log& log);

// --- credentials ---

/// Returns the user's credentials for the registry of `image`, from the first of the user's files
/// that has some (CredentialPlaces). Only credentials of that registry are read or requested. An
/// unusable file causes a warning if another one has credentials, and the error otherwise.
Result<std::optional<RegistrySecret>> find_credentials(const CredentialPlaces& places,
                                                       const ImageReference& image,
                                                       const std::string& user, Log& log);

/// Answers UserSourceKind::credentials on `socket`. Refuses a request for any registry but that of
/// `image`, which the user named: the importer must not be able to collect unrelated credentials.
Result<void> answer_credentials(int socket, const UserSourceMessage& question,
                                const ImageReference& image, Log& log);

}  // namespace spc
