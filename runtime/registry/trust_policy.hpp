#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "reference/reference.hpp"

namespace spc {

// --- named reference ---

/// A Docker reference in signatures and policy.json. Unlike an ImageReference it may have neither
/// tag nor digest.
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

/// `signedIdentity`: the name that a signature must have been made for.
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
  /// of exact_reference and exact_repository; the replaced prefix of remap_identity
  std::string reference;
  std::string signed_prefix;  ///< remap_identity

  /// Returns whether a signature for `signed_name` may admit `image`, the name given by the user.
  [[nodiscard]] bool admits(const NamedReference& image, std::string_view signed_name) const;
};

// --- trust policy ---

/// One entry of a list in policy.json. An image must meet all entries of its list.
struct TrustRequirement {
  enum class Kind { reject, accept_anything, sigstore_signed, not_supported };
  Kind kind = Kind::reject;
  std::string what;                    ///< not_supported: the unsupported feature, for messages
  std::vector<std::string> key_paths;  ///< sigstore_signed: key files, any of which may have signed
  std::vector<std::string> key_data;   ///< sigstore_signed: further keys, as PEM in base64
  SignedIdentity identity;
};

/// policy.json with the rules of podman and skopeo (containers-policy.json(5)), as strict as
/// theirs: an unknown member, a wrong type or an empty list is an error.
class TrustPolicy {
 public:
  using Requirements = std::vector<TrustRequirement>;
  struct Found {
    std::string scope;  ///< `docker "registry:5000/team"`, `default`: for messages
    const Requirements* requirements = nullptr;
  };

  static Result<TrustPolicy> parse(std::string_view text);
  /// Reads a file that, like config.toml, only root (or `owner`) may write.
  static Result<TrustPolicy> read(const std::string& path, uid_t owner);

  /// Returns the requirements for an image of a registry, by the name given by the user: transport
  /// `docker`, the longest matching scope.
  [[nodiscard]] Found for_registry(const ImageReference& image) const;
  /// Returns the requirements for a local image. `path` is absolute, `reference` is the part after
  /// the colon. Without a path (an image of podman or docker) only the transport's own scope
  /// matches.
  [[nodiscard]] Found for_local(const std::string& transport, const std::string& path,
                                const std::string& reference = "") const;

 private:
  using Scopes = std::map<std::string, Requirements, std::less<>>;

  [[nodiscard]] Found find(const std::string& transport,
                           const std::vector<std::string>& scopes) const;

  Requirements default_;
  std::map<std::string, Scopes, std::less<>> transports_;
};

}  // namespace spc
