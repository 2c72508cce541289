#include "registry/signature.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/json.hpp"
#include "base/text.hpp"

namespace spc {

// --- public key ---

namespace {

constexpr int kLeastRsaBits = 2048;
constexpr int kMostRsaBits = 16384;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

const unsigned char* octets(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

void PublicKey::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

Result<PublicKey> PublicKey::parse(std::string_view pem, std::string name) {
  const auto wrong = [&](const char* why) {
    return Error(ErrorKind::invalid, "signature key " + in_quotes(name) + ": " + why);
  };
  const std::unique_ptr<BIO, FreeBio> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Handle key(bio ? PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  if (!key) return wrong("is not a public key in PEM form (BEGIN PUBLIC KEY)");
  switch (EVP_PKEY_base_id(key.get())) {
    case EVP_PKEY_EC:
    case EVP_PKEY_ED25519: break;
    case EVP_PKEY_RSA:
      if (EVP_PKEY_bits(key.get()) < kLeastRsaBits)
        return wrong("is an RSA key of fewer than 2048 bits");
      if (EVP_PKEY_bits(key.get()) > kMostRsaBits)
        return wrong("is an RSA key of more than 16384 bits");
      break;
    default: return wrong("is of another kind than ECDSA, RSA and Ed25519");
  }
  return PublicKey(std::move(key), std::move(name));
}

bool PublicKey::has_signed(std::string_view message, std::string_view signature) const {
  const bool hashes_itself = EVP_PKEY_base_id(key_.get()) == EVP_PKEY_ED25519;
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  const bool signed_by_it =
      context &&
      EVP_DigestVerifyInit(context.get(), nullptr, hashes_itself ? nullptr : EVP_sha256(), nullptr,
                           key_.get()) == 1 &&
      EVP_DigestVerify(context.get(), octets(signature), signature.size(), octets(message),
                       message.size()) == 1;
  ERR_clear_error();
  return signed_by_it;
}

namespace {

constexpr std::size_t kMostKey = 64 << 10;

}  // namespace

Result<PublicKey> PublicKey::of_file(const std::string& path, uid_t owner) {
  const auto file = SPC_TRY(open_trusted_file(path, "signature key", owner));
  const std::string pem =
      SPC_TRY_DURING("signature key " + in_quotes(path), read_file(file.get(), kMostKey));
  return parse(pem, path);
}

Result<std::string> sign_by_key_in(const std::string& path, std::string_view message) {
  const std::string step = "signing key " + in_quotes(path);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Error::from_errno(errno, step);
  std::string pem = SPC_TRY_DURING(step, read_file(file.get(), kMostKey));
  const std::unique_ptr<BIO, FreeBio> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const auto free_key = [](EVP_PKEY* key) { EVP_PKEY_free(key); };
  const std::unique_ptr<EVP_PKEY, decltype(free_key)> key(
      bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr) : nullptr, free_key);
  explicit_bzero(pem.data(), pem.size());
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  std::string signature(64, '\0');
  std::size_t size = signature.size();
  const bool is_signed =
      key && EVP_PKEY_base_id(key.get()) == EVP_PKEY_ED25519 && context &&
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     octets(message), message.size()) == 1;
  ERR_clear_error();
  if (is_signed) return signature;
  return Error(ErrorKind::invalid, step + ": is not an Ed25519 private key in PEM form")
      .hint("openssl genpkey -algorithm ed25519 -out " + path);
}

// --- attached signatures ---

namespace {

constexpr std::string_view kSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json";
constexpr std::string_view kCosignArtifact = "application/vnd.dev.cosign.artifact.sig.v1+json";
constexpr std::string_view kBundle = "application/vnd.dev.sigstore.bundle";
constexpr char kSignature[] = "dev.cosignproject.cosign/signature";
constexpr std::size_t kMostBase64 = 8 << 10;  // bytes; an RSA signature of 16384 bits has 2732

Result<std::string> taken(JsonObject& object, const char* key) {
  std::string text;
  if (!object.has(key)) return object.problem(key, "is missing");
  SPC_TRY(object.take(key, text));
  return text;
}

Result<JsonObject> object_in(JsonObject& object, const char* key) {
  const Json* member = object.take_any(key);
  if (member == nullptr) return object.problem(key, "is missing");
  return JsonObject::of(*member, object.name_of(key));
}

Result<Digest> digest_in(const Json& descriptor) {
  const auto digest = SPC_TRY(descriptor.text("digest"));
  return Digest::parse(digest.value_or(""));
}

Result<AttachedSignature> signature_of(const Json& layer, std::string signature) {
  AttachedSignature attached{.payload = {}, .payload_size = 0, .signature = std::move(signature)};
  attached.payload = SPC_TRY(digest_in(layer));
  attached.payload_size = SPC_TRY(layer.number("size")).value_or(0);
  if (attached.payload_size > kMostPayload)
    return Error(ErrorKind::refused, "has a payload of more than 64 KiB");
  if (attached.signature.size() > kMostBase64)
    return Error(ErrorKind::refused, "has a signature of more than 8 KiB");
  return attached;
}

Result<std::vector<AttachedSignature>> signatures_in(const Json& document) {
  std::vector<AttachedSignature> signatures;
  const auto* layers = SPC_TRY(document.list("layers"));
  for (const Json& layer : *layers) {
    if (!layer.is_object() || SPC_TRY(layer.text("mediaType")) != kSimpleSigning) continue;
    const Json* annotations = layer.find("annotations");
    if (annotations == nullptr || !annotations->is_object()) continue;
    auto signature = SPC_TRY(annotations->text(kSignature));
    if (!signature) continue;
    if (signatures.size() == kMostSignatures) {
      return Error(ErrorKind::refused, formatted("has more than {} signatures", kMostSignatures));
    }
    signatures.push_back(SPC_TRY(signature_of(layer, *std::move(signature))));
  }
  return signatures;
}

Result<Referrers> referrers_in(const Json& document) {
  Referrers referrers;
  const auto* entries = SPC_TRY(document.list("manifests"));
  for (const Json& entry : *entries) {
    if (!entry.is_object()) continue;
    const std::string type = SPC_TRY(entry.text("artifactType")).value_or("");
    referrers.has_bundles |= type.starts_with(kBundle);
    if (type != kCosignArtifact) continue;
    if (referrers.signatures.size() == kMostReferrers) {
      return Error(ErrorKind::refused, formatted("lists more than {} signatures", kMostReferrers));
    }
    referrers.signatures.push_back(SPC_TRY(digest_in(entry)));
  }
  return referrers;
}

}  // namespace

Result<SignedPayload> SignedPayload::parse(std::string_view text) {
  const Json document = SPC_TRY(JsonObject::parse(text));
  auto root = SPC_TRY(JsonObject::of(document));
  auto critical = SPC_TRY(object_in(root, "critical"));
  root.take_any("optional");
  SPC_TRY(root.nothing_left());
  const std::string type = SPC_TRY(taken(critical, "type"));
  if (type != "cosign container image signature")
    return critical.problem("type", "is not that of a container image's signature");
  auto identity = SPC_TRY(object_in(critical, "identity"));
  auto image = SPC_TRY(object_in(critical, "image"));
  SPC_TRY(critical.nothing_left());
  SignedPayload payload;
  payload.name = SPC_TRY(taken(identity, "docker-reference"));
  const std::string digest = SPC_TRY(taken(image, "docker-manifest-digest"));
  payload.manifest = SPC_TRY(Digest::parse(digest));
  SPC_TRY(identity.nothing_left());
  SPC_TRY(image.nothing_left());
  return payload;
}

Result<std::vector<AttachedSignature>> parse_attachment(std::string_view manifest,
                                                        std::string_view what) {
  const Json document = SPC_TRY_DURING(what, JsonObject::parse(manifest));
  return SPC_TRY_DURING(what, signatures_in(document));
}

Result<Referrers> parse_referrers(std::string_view index, std::string_view what) {
  const Json document = SPC_TRY_DURING(what, JsonObject::parse(index));
  return SPC_TRY_DURING(what, referrers_in(document));
}

std::string signature_tag(const Digest& subject) { return "sha256-" + subject.hex() + ".sig"; }

// --- stored signatures ---

namespace {

constexpr std::size_t kMostKept = 16;  // signatures; enough for the signers and names of one image

}  // namespace

std::string serialize(const std::vector<ImageSignature>& signatures) {
  std::string records;
  for (const ImageSignature& signature : signatures) {
    // A payload is JSON and has no NUL.
    if (signature.payload.find('\0') != std::string::npos) continue;
    add_record(records, "payload", signature.payload);
    add_record(records, "signature", signature.signature);
    add_record(records, "key", signature.key);
  }
  return records;
}

std::vector<ImageSignature> parse_kept_signatures(std::string_view records) {
  std::vector<ImageSignature> signatures;
  for (Records record(records); record.next();) {
    if (record.key() == "payload") {
      if (signatures.size() == kMostKept) break;
      signatures.push_back({std::string(record.value()), "", ""});
    }
    if (signatures.empty()) continue;
    if (record.key() == "signature") signatures.back().signature = record.value();
    if (record.key() == "key") signatures.back().key = record.value();
  }
  return signatures;
}

std::vector<ImageSignature> merged(std::vector<ImageSignature> added,
                                   const std::vector<ImageSignature>& kept) {
  for (const ImageSignature& old : kept) {
    const bool is_new = std::none_of(added.begin(), added.end(), [&](const ImageSignature& one) {
      return one.payload == old.payload && one.signature == old.signature;
    });
    if (is_new && added.size() < kMostKept) added.push_back(old);
  }
  return added;
}

// --- policy check ---

namespace {

Result<PublicKey> key_in_text(const std::string& text) {
  const auto pem = from_base64(text);
  if (!pem) return Error(ErrorKind::invalid, "keyData: is not base64");
  return PublicKey::parse(*pem, "keyData " + Sha256::of(*pem).str().substr(0, 19));
}

}  // namespace

/// Result of checking one signature. Stages are ordered: the latest one explains the failure best.
struct RequirementCheck::Judgement {
  enum Stage { none, other_key, no_payload, other_image, other_name, accepted } stage = none;
  std::string key;
  std::string detail;
};

std::string RequirementCheck::SignedBy::names() const {
  std::string text;
  for (const PublicKey& key : keys) text += (text.empty() ? "" : " or ") + in_quotes(key.name());
  return text;
}

Result<RequirementCheck> RequirementCheck::prepare(const TrustPolicy::Found& found,
                                                   const std::string& policy, uid_t owner) {
  using Kind = TrustRequirement::Kind;
  RequirementCheck check;
  check.scope_ = formatted("{} in {}", found.scope, in_quotes(policy));
  for (const TrustRequirement& requirement : *found.requirements) {
    if (requirement.kind == Kind::reject) {
      return Error(ErrorKind::refused,
                   formatted("rejected by this site's signature policy ({})", check.scope_))
          .hint("use an image that the site admits, or ask the administrator");
    }
    if (requirement.kind == Kind::not_supported) {
      return Error(
                 ErrorKind::refused,
                 formatted("this site's signature policy asks for {}, which is not supported ({})",
                           requirement.what, check.scope_))
          .hint("the administrator can use sigstoreSigned with a key");
    }
    if (requirement.kind == Kind::sigstore_signed) SPC_TRY(check.add(requirement, owner));
  }
  return check;
}

Result<void> RequirementCheck::add(const TrustRequirement& requirement, uid_t owner) {
  SignedBy wanted{.keys = {}, .identity = requirement.identity};
  for (const std::string& path : requirement.key_paths)
    wanted.keys.push_back(SPC_TRY(PublicKey::of_file(path, owner)));
  for (const std::string& text : requirement.key_data)
    wanted.keys.push_back(SPC_TRY_DURING(scope_, key_in_text(text)));
  signed_by_.push_back(std::move(wanted));
  return {};
}

RequirementCheck::Judgement RequirementCheck::judge(const SignedBy& wanted,
                                                    const ImageSignature& signature,
                                                    const SignedImage& image) {
  const auto bytes = from_base64(signature.signature);
  const auto made_it = [&](const PublicKey& key) {
    return bytes && key.has_signed(signature.payload, *bytes);
  };
  const auto key = std::find_if(wanted.keys.begin(), wanted.keys.end(), made_it);
  if (key == wanted.keys.end()) return {Judgement::other_key, "", ""};
  // The signature is verified: from here on the payload is trusted.
  const auto payload = SignedPayload::parse(signature.payload);
  if (!payload) return {Judgement::no_payload, key->name(), payload.error().message()};
  const bool is_of_image = std::find(image.digests.begin(), image.digests.end(),
                                     payload->manifest) != image.digests.end();
  if (!is_of_image) return {Judgement::other_image, key->name(), payload->manifest.str()};
  if (!wanted.identity.admits(image.name, payload->name))
    return {Judgement::other_name, key->name(), payload->name};
  return {Judgement::accepted, key->name(), ""};
}

Error RequirementCheck::refusal(const SignedBy& wanted, const Judgement& closest) const {
  const auto refused = [&](std::string why) {
    return Error(ErrorKind::refused, formatted("this site requires a signature by {} ({}): {}",
                                               wanted.names(), scope_, why));
  };
  switch (closest.stage) {
    case Judgement::none:
      return refused("the image is not signed").hint("sign it with cosign and the site's key");
    case Judgement::other_key:
      return refused("the image is signed by others only").hint("sign it with the site's key");
    case Judgement::no_payload:
      return refused("what is signed is not about an image: " + closest.detail);
    case Judgement::other_image:
      return refused(formatted("the signature is for another image, {}", closest.detail));
    default: break;
  }
  const bool only_repository = NamedReference::parse(closest.detail) &&
                               NamedReference::parse(closest.detail)->is_name_only();
  return refused(formatted("the signature is for the name {}", in_quotes(closest.detail)))
      .hint(only_repository
                ? "cosign signs no tag: the administrator can set signedIdentity to matchRepository"
                : "sign it under this name");
}

Result<std::vector<ImageSignature>> RequirementCheck::accept(
    const std::vector<ImageSignature>& signatures, const SignedImage& image) const {
  std::vector<ImageSignature> accepted;
  for (const SignedBy& wanted : signed_by_) {
    Judgement closest;
    for (const ImageSignature& signature : signatures) {
      Judgement judgement = judge(wanted, signature, image);
      if (judgement.stage == Judgement::accepted) {
        accepted.push_back({signature.payload, signature.signature, judgement.key});
      }
      if (judgement.stage > closest.stage) closest = std::move(judgement);
      if (closest.stage == Judgement::accepted) break;
    }
    if (closest.stage != Judgement::accepted) return refusal(wanted, closest);
  }
  return accepted;
}

}  // namespace spc
