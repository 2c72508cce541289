#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/signature/named_reference.hpp"
#include "image/signature/public_key.hpp"
#include "image/signature/trust_policy.hpp"

namespace spc {

/// A payload and what is said to be somebody's signature of it.
struct ImageSignature {
  std::string payload;
  std::string signature;  ///< base64
  std::string key;        ///< once accepted: the name of the key
};

/// What a signature has to be for.
struct SignedImage {
  NamedReference name;          ///< as the user gave it, not a mirror's
  std::vector<Digest> digests;  ///< its manifest's and those of indexes that lead to it: a
                                ///< signature of one of them will do
};

/// What policy.json asks of one image, with the keys at hand.
class RequirementCheck {
 public:
  /// Refuses what no signature can admit: `reject`, and what is not supported. `policy`: its path,
  /// for messages. Keys must be files that only root (or `owner`) can have written.
  static Result<RequirementCheck> prepare(const TrustPolicy::Found& found,
                                          const std::string& policy, uid_t owner);

  /// Whether signatures matter at all.
  [[nodiscard]] bool needs_signatures() const { return !signed_by_.empty(); }
  /// The signatures that admit the image, one for each requirement. Otherwise an error that says
  /// what is wrong with those that came closest.
  [[nodiscard]] Result<std::vector<ImageSignature>> accept(
      const std::vector<ImageSignature>& signatures, const SignedImage& image) const;

 private:
  struct SignedBy {
    std::vector<PublicKey> keys;
    SignedIdentity identity;
    [[nodiscard]] std::string names() const;
  };
  struct Judgement;

  Result<void> add(const TrustRequirement& requirement, uid_t owner);
  static Judgement judge(const SignedBy& wanted, const ImageSignature& signature,
                         const SignedImage& image);
  [[nodiscard]] Error refusal(const SignedBy& wanted, const Judgement& closest) const;

  std::string scope_;  ///< `docker "registry:5000" in "/etc/containers/policy.json"`
  std::vector<SignedBy> signed_by_;
};

}  // namespace spc
