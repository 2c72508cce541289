#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

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
  std::string user;        ///< whose credentials to use; empty: the default
  std::string registry;    ///< HOST[:PORT], lower case; an IPv6 address is in brackets
  std::string repository;  ///< `library/ubuntu`
  std::string tag;         ///< empty if there is a digest
  std::optional<Digest> digest;
  bool tag_ignored = false;  ///< the text had both tag and digest

  /// The error names the violated rule; it never repeats a password in the name.
  static Result<ImageReference> parse(std::string_view text,
                                      std::string_view default_registry = "docker.io");

  /// The canonical text of an image: `registry:5000/pytorch:1.13`,
  /// `docker.io/library/ubuntu@sha256:…`. parse() of it gives this reference again (without user).
  [[nodiscard]] std::string canonical() const;
  /// The tag, or `sha256:…`, for the registry.
  [[nodiscard]] std::string tag_or_digest() const { return digest ? digest->str() : tag; }
  /// HOST[:PORT] of the registry's server: docker.io's is registry-1.docker.io.
  [[nodiscard]] std::string api_host() const;
  /// canonical() with '/' as %2F: how the store calls it. Empty if too long.
  [[nodiscard]] std::optional<std::string> ref_file_name() const;
};

/// HOST or HOST:PORT by the same rules as in a reference, in lower case and with docker.io's
/// aliases resolved.
Result<std::string> parse_registry(std::string_view text);

}  // namespace spc
