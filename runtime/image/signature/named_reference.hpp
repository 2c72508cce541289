#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/reference/reference.hpp"

namespace spc {

/// A Docker reference as signatures and policy.json have it: unlike an ImageReference it may have
/// neither tag nor digest.
struct NamedReference {
  std::string name;  ///< REGISTRY/REPOSITORY, with docker.io and library/ written out
  std::string tag;   ///< empty: none
  std::optional<Digest> digest;

  static Result<NamedReference> parse(std::string_view text);
  static NamedReference of(const ImageReference& image);
  [[nodiscard]] bool is_name_only() const { return tag.empty() && !digest; }
  [[nodiscard]] std::string str() const;

  bool operator==(const NamedReference&) const = default;
};

/// `signedIdentity`: which name a signature must have been made for.
struct SignedIdentity {
  enum class Kind {
    match_exact,
    match_repo_digest_or_exact,
    match_repository,
    exact_reference,
    exact_repository,
    remap_identity,
  };
  Kind kind = Kind::match_repo_digest_or_exact;
  std::string reference;  ///< exact_reference, exact_repository; remap_identity: the prefix that is
                          ///< replaced
  std::string signed_prefix;  ///< remap_identity

  /// Whether a signature for `signed_name` may admit `image`, the name that the user gave.
  [[nodiscard]] bool admits(const NamedReference& image, std::string_view signed_name) const;
};

}  // namespace spc
