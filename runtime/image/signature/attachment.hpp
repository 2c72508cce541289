#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// What a signature is made over (containers-signature(5), cosign's SIGNATURE_SPEC.md).
struct SignedPayload {
  Digest manifest;   ///< of the image, or of the index that leads to it
  std::string name;  ///< `docker-reference`

  /// Everything that it must have, and nothing else but what `optional` may have.
  static Result<SignedPayload> parse(std::string_view text);
};

/// A signature as it lies in a registry: cosign attaches a manifest to an image, with a layer for
/// each.
struct AttachedSignature {
  Digest payload;  ///< the blob that is signed
  std::uint64_t payload_size = 0;
  std::string signature;  ///< base64
};

inline constexpr std::size_t kMostSignatures = 128;      ///< of one image
inline constexpr std::uint64_t kMostPayload = 64 << 10;  ///< bytes
inline constexpr std::size_t kMostReferrers = 16;

/// The signatures in an attached manifest. Layers of other kinds are passed over; more signatures
/// than kMostSignatures, or a payload that is larger than kMostPayload, are an error.
Result<std::vector<AttachedSignature>> parse_attachment(std::string_view manifest,
                                                        std::string_view what);

/// What a referrers index lists.
struct Referrers {
  std::vector<Digest> signatures;  ///< manifests as parse_attachment() takes them
  bool has_bundles = false;        ///< sigstore bundles: signatures that name no repository, so no
                                   ///< policy.json admits them
};
Result<Referrers> parse_referrers(std::string_view index, std::string_view what);

/// The tag under which cosign attaches signatures to what has this digest.
std::string signature_tag(const Digest& subject);

}  // namespace spc
