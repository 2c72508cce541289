#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/reference/reference.hpp"
#include "image/signature/named_reference.hpp"

namespace spc {

/// One entry of a list in policy.json. An image must meet all entries of the list that counts for
/// it.
struct TrustRequirement {
  enum class Kind { reject, accept_anything, sigstore_signed, not_supported };
  Kind kind = Kind::reject;
  std::string what;                    ///< not_supported: what it asks for
  std::vector<std::string> key_paths;  ///< sigstore_signed: any of these keys, from files
  std::vector<std::string> key_data;   ///< or any of these, as PEM in base64
  SignedIdentity identity;
};

/// policy.json, as podman and skopeo read it (containers-policy.json(5)), and as strictly: an
/// unknown member, a wrong type or an empty list is an error.
class TrustPolicy {
 public:
  using Requirements = std::vector<TrustRequirement>;
  struct Found {
    std::string scope;  ///< `docker "registry:5000/team"`, `default`: for messages
    const Requirements* requirements = nullptr;
  };

  static Result<TrustPolicy> parse(std::string_view text);
  /// A file that only root (or `owner`) can have written, as config.toml.
  static Result<TrustPolicy> read(const std::string& path, uid_t owner);

  /// For an image of a registry, by the name that the user gave: transport `docker`, the longest
  /// scope that fits.
  [[nodiscard]] Found for_registry(const ImageReference& image) const;
  /// For a local image; `path` is absolute, `reference` the part behind the colon. Without a path
  /// (an image of podman or docker) only the transport's own scope counts.
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
