#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "reference/reference.hpp"

namespace spc {

// --- user path ---

/// How a path that a user has typed is read: the same in every option, variable and argument. Used
/// as the user only.
struct UserPaths {
  /// The program that should have expanded variables; `seen`: no check, as in a container, where
  /// files of the host are not visible.
  enum class Variables { slurm, shell, seen };

  std::string home;  ///< for ~; empty: not known
  std::string here;  ///< work directory of the submission; for paths of the container
  Variables variables = Variables::seen;

  /// Takes HOME and the work directory from the user's variables.
  static UserPaths of(const std::map<std::string, std::string>& variables, Variables expanded_by);

  /// Returns the path that is meant. `~` and `~/…`, at the beginning or after a scheme (`oci:`),
  /// are the user's home; other text is unchanged, so that a relative path is one of the current
  /// directory. Refuses ~NAME.
  [[nodiscard]] Result<std::string> resolve(const std::string& typed) const;

  /// Refuses $NAME, ${…}, $(…) and commands in backquotes, which Slurm passes on as they are,
  /// unless a file has this very name.
  [[nodiscard]] Result<void> refuse_variables(const std::string& typed) const;
};

// --- file URL ---

/// A file at a web server, with its digest if known: `https://HOST[:PORT]/PATH[#sha256=HEX]`. It
/// has neither user nor password, because messages and logs show URLs.
struct FileUrl {
  static constexpr std::string_view kScheme = "https://";

  std::string url;   ///< without the digest
  std::string host;  ///< HOST[:PORT] as typed
  std::string path;  ///< after the host's slash
  std::optional<Digest> digest;

  /// Parses a URL. The error does not repeat the text, which may contain a password.
  static Result<FileUrl> parse(std::string_view text);
};

/// Returns an image's name as typed, without the parts of a URL that may be secret: user and
/// password, query, and any fragment except a digest. Messages, logs, variables, command lines and
/// notes use only this form.
std::string without_secrets(std::string_view image);

/// Returns the same as a key for comparisons: a name with a query and without a digest ends in `?~`
/// and 16 digits, a hash of the query. For files that only the user can read.
std::string name_without_secrets(std::string_view image);

// --- location ---

/// The source of an image, as given by the user:
///
///     [docker://][USER@][REGISTRY/ or REGISTRY#]NAME[:TAG][@DIGEST]   a registry
///     oci:DIR[:REF]                                    an OCI image layout
///     oci-archive:FILE[:REF]   docker-archive:FILE[:REF]
///                                                      one in a tar archive or `docker save`
///     dockerd://NAME   podman://NAME                   the daemon's or the user's podman storage
///     oras://[USER@][REGISTRY/]NAME[:TAG][@DIGEST]     a SIF, squashfs or other file in a registry
///     https://HOST[:PORT]/PATH[#sha256=HEX]            an image file at a web server
///     ./PATH   ../PATH   ~/PATH   /PATH                a file or directory; its content decides
///
/// A path is kept as given, but for a home that UserPaths has put for ~, until it is opened as the
/// user, relative to the job's work directory.
/// After a scheme it ends at the first ':', as in skopeo. The error for an unknown scheme names it;
/// names that look like files (`foo.sqsh`) are refused with "did you mean".
struct ImageLocation {
  enum class Kind {
    registry,
    oci_layout,
    oci_archive,
    docker_archive,
    docker_daemon,
    podman,
    path,
    remote_file
  };

  Kind kind = Kind::registry;
  ImageReference name;  ///< registry, remote_file; for https: host, path and the file's digest
  std::string path;     ///< oci_layout, oci_archive, docker_archive, path
  /// REF within the layout or archive, the daemon's NAME, or the URL; may be empty
  std::string reference;

  static Result<ImageLocation> parse(std::string_view text,
                                     std::string_view default_registry = "docker.io");
  /// Returns the canonical text of an image, for records and messages. parse() of it returns this
  /// location again, except USER and what without_secrets() removes.
  [[nodiscard]] std::string canonical() const;
};

}  // namespace spc
