#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "registry/trust_policy.hpp"

// --- public key ---

struct evp_pkey_st;

namespace spc {

/// Public key of an image signer: ECDSA or RSA (PKCS #1 v1.5), both over SHA-256, or Ed25519, as
/// created by cosign.
class PublicKey {
 public:
  /// Parses PEM (`BEGIN PUBLIC KEY`). `name` is its name in messages: its file or a fingerprint.
  static Result<PublicKey> parse(std::string_view pem, std::string name);
  /// Reads a file that only `owner` and root can have written (open_trusted_file()).
  static Result<PublicKey> of_file(const std::string& path, uid_t owner);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Returns whether `signature` (ECDSA: in DER) is a signature of `message` by this key.
  [[nodiscard]] bool has_signed(std::string_view message, std::string_view signature) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  using Handle = std::unique_ptr<evp_pkey_st, Free>;

  PublicKey(Handle key, std::string name) : key_(std::move(key)), name_(std::move(name)) {}

  Handle key_;
  std::string name_;
};

/// Signs `message` with the Ed25519 private key in a PEM file. Error: the file has no such key.
Result<std::string> sign_by_key_in(const std::string& path, std::string_view message);

// --- attached signatures ---

/// Signed content of a signature (containers-signature(5), cosign's SIGNATURE_SPEC.md).
struct SignedPayload {
  Digest manifest;   ///< digest of the image's manifest, or of an index that leads to it
  std::string name;  ///< `docker-reference`

  /// Parses the JSON payload. All required members must exist, and only `optional` may have further
  /// ones.
  static Result<SignedPayload> parse(std::string_view text);
};

/// A signature stored in a registry: cosign attaches a manifest to an image, with one layer per
/// signature.
struct AttachedSignature {
  Digest payload;  ///< digest of the signed blob
  std::uint64_t payload_size = 0;
  std::string signature;  ///< base64
};

inline constexpr std::size_t kMostSignatures = 128;      ///< of one image
inline constexpr std::uint64_t kMostPayload = 64 << 10;  ///< bytes
inline constexpr std::size_t kMostReferrers = 16;

/// Returns the signatures in an attached manifest. Layers of other types are skipped. More
/// signatures than kMostSignatures, or a payload larger than kMostPayload, are an error.
Result<std::vector<AttachedSignature>> parse_attachment(std::string_view manifest,
                                                        std::string_view what);

/// Relevant entries of a referrers index.
struct Referrers {
  std::vector<Digest> signatures;  ///< manifests for parse_attachment()
  /// sigstore bundles; they name no repository, so no policy.json admits them
  bool has_bundles = false;
};
Result<Referrers> parse_referrers(std::string_view index, std::string_view what);

/// Returns the tag under which cosign attaches signatures to the object with this digest.
std::string signature_tag(const Digest& subject);

// --- policy check ---

/// A payload and its alleged signature.
struct ImageSignature {
  std::string payload;
  std::string signature;  ///< base64
  std::string key;        ///< name of the key; set once accepted
};

/// The image that a signature must refer to.
struct SignedImage {
  NamedReference name;  ///< as given by the user, not a mirror's
  /// digests of its manifest and of the indexes that lead to it; a signature of any of them is
  /// enough
  std::vector<Digest> digests;
};

/// Requirements of policy.json for one image, with their keys loaded.
class RequirementCheck {
 public:
  /// Loads the keys. Refuses requirements that no signature can meet: `reject` and unsupported
  /// ones. `policy` is the path of policy.json, for messages. Keys must be files writable only by
  /// root (or `owner`).
  static Result<RequirementCheck> prepare(const TrustPolicy::Found& found,
                                          const std::string& policy, uid_t owner);

  /// Returns whether the requirements need signatures.
  [[nodiscard]] bool needs_signatures() const { return !signed_by_.empty(); }
  /// Returns the signatures that admit the image, one per requirement. Otherwise the error explains
  /// why the best candidates were not accepted.
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

// --- stored signatures ---

/// Returns the records of the signatures that admitted an image, stored beside its record, newest
/// first.
std::string serialize(const std::vector<ImageSignature>& signatures);
/// Parses stored signatures. Malformed ones are skipped and must be fetched again.
std::vector<ImageSignature> parse_kept_signatures(std::string_view records);
/// Returns `added`, followed by the different ones of `kept`, limited to the number that is stored.
std::vector<ImageSignature> merged(std::vector<ImageSignature> added,
                                   const std::vector<ImageSignature>& kept);

}  // namespace spc
