#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// The name of an image at a registry, as the user types it and as the rest of the program needs it:
///
///     [docker://][USER@][REGISTRY/ or REGISTRY#]NAME[:TAG][@DIGEST]
///
/// The first component is a registry if it contains '.' or ':' or is `localhost`, or if '#' follows it. Without one the
/// site's default registry is meant. `index.docker.io` and `registry-1.docker.io` are `docker.io`, where a name of one
/// component lies in `library/`. Without tag and digest the tag is `latest`; a digest beats a tag. Names, tags and
/// digests follow the OCI distribution specification. A value of this type has passed all these rules.
struct ImageReference {
  std::string user;        ///< whose credentials to use; empty: the default
  std::string registry;    ///< HOST[:PORT], lower case; an IPv6 address stands in brackets
  std::string repository;  ///< `library/ubuntu`
  std::string tag;         ///< empty when a digest decides
  std::optional<Digest> digest;
  bool tag_ignored = false;  ///< the text had a tag beside the digest

  /// The error names the rule that was broken; it never repeats a password that was typed into the name.
  static Result<ImageReference> parse(std::string_view text, std::string_view default_registry = "docker.io");

  /// One text for one image, whatever way it was written: `registry:5000/pytorch:1.13`,
  /// `docker.io/library/ubuntu@sha256:…`. parse() of it gives this reference again (without user).
  [[nodiscard]] std::string canonical() const;
  /// What the registry calls it: the tag, or `sha256:…`.
  [[nodiscard]] std::string tag_or_digest() const { return digest ? digest->str() : tag; }
  /// HOST[:PORT] that answers for this registry: docker.io's is registry-1.docker.io.
  [[nodiscard]] std::string api_host() const;
  /// canonical() with '/' as %2F: its file in the store's refs/. Empty when longer than a file name may be.
  [[nodiscard]] std::optional<std::string> ref_file_name() const;
};

/// HOST or HOST:PORT by the same rules as in a reference, lower case and with docker.io's aliases resolved.
Result<std::string> parse_registry(std::string_view text);

}  // namespace spc
