#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

// --- reference ---

/// The name of an image in a registry, as given by the user and in the form the program needs:
///
///     [docker://][USER@][REGISTRY/ or REGISTRY#]NAME[:TAG][@DIGEST]
///
/// The first component is a registry if it contains '.' or ':', is `localhost`, or is followed by
/// '#'. Otherwise the site's default registry is used. `index.docker.io` and `registry-1.docker.io`
/// are `docker.io`, where a name of one component is in `library/`. Without tag and digest the tag
/// is `latest`; a digest overrides a tag. Names, tags and digests follow the OCI distribution
/// specification. A value of this type satisfies all these rules.
struct ImageReference {
  std::string user;        ///< login name of the credentials to use; empty: the default
  std::string registry;    ///< HOST[:PORT], lower case; an IPv6 address is in brackets
  std::string repository;  ///< `library/ubuntu`
  std::string tag;         ///< empty if there is a digest
  std::optional<Digest> digest;
  bool tag_ignored = false;  ///< the text had both tag and digest

  /// Parses a reference. The error names the violated rule and never repeats a password in the
  /// name.
  static Result<ImageReference> parse(std::string_view text,
                                      std::string_view default_registry = "docker.io");

  /// Returns the canonical text of an image: `registry:5000/pytorch:1.13`,
  /// `docker.io/library/ubuntu@sha256:…`. parse() of it returns this reference again (without
  /// user).
  [[nodiscard]] std::string canonical() const;
  /// Returns the tag or `sha256:…`, for requests to the registry.
  [[nodiscard]] std::string tag_or_digest() const { return digest ? digest->str() : tag; }
  /// Returns HOST[:PORT] of the registry's server; docker.io's is registry-1.docker.io.
  [[nodiscard]] std::string api_host() const;
  /// Returns the image's file name in the store: canonical() with '/' as %2F. Empty if it is too
  /// long.
  [[nodiscard]] std::optional<std::string> ref_file_name() const;
};

/// Parses HOST or HOST:PORT by the rules of references. Returns it in lower case with docker.io's
/// aliases resolved.
Result<std::string> parse_registry(std::string_view text);

// --- hints for failed pulls ---

/// Returns the error of a pull with better hints for the image's name as typed. If the name has no
/// registry, the hint names the default registry that was used. A name that looks like a registry
/// may have lost `#NAME` to a comment in an #SBATCH line, which the hint explains.
Error advised(Error error, std::string_view image, std::string_view default_registry);

// --- named image ---

/// The image that a name refers to: a file of names/ in the store or, for one user, of grants/.
struct NamedImage {
  std::string name;  ///< ref_file_of() of the reference
  Digest manifest;
  std::int64_t asked_at = 0;  ///< time of the registry's answer, in seconds since 1970
  /// Indexes that led from the name to the manifest, newest first. While the registry returns one
  /// of them, the name has not moved.
  std::vector<Digest> indexes;
  /// seconds since 1970: when the file was written; set by read_named_image()
  std::int64_t written = 0;

  /// Returns whether `digest` is that of the manifest, or of an index that leads to it.
  [[nodiscard]] bool is(const Digest& digest) const;
  [[nodiscard]] std::string str() const;
  /// Parses a file's text. Returns an empty optional if it is malformed, as after a crash.
  static std::optional<NamedImage> parse(std::string_view text);
  /// Adds indexes up to a limit; further ones are not recorded.
  void add_indexes(const std::vector<Digest>& more);
};

/// Returns a hash of the name, for processes that only exchange digests. Hashes may collide, so
/// readers of the file compare the name.
Digest name_key(std::string_view name);

/// Reads a file of the store that only `owner` can write, by name. Returns an empty optional if
/// there is none. Never blocks.
std::optional<NamedImage> read_named_image(int directory, const std::string& file,
                                           std::optional<uid_t> owner = {});

}  // namespace spc
