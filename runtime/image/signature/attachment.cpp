#include "image/signature/attachment.hpp"

#include "base/format.hpp"
#include "base/json/json_object.hpp"

namespace spc {
namespace {

constexpr std::string_view kSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json";
constexpr std::string_view kCosignArtifact = "application/vnd.dev.cosign.artifact.sig.v1+json";
constexpr std::string_view kBundle = "application/vnd.dev.sigstore.bundle";
constexpr char kSignature[] = "dev.cosignproject.cosign/signature";
constexpr std::size_t kMostBase64 = 8 << 10;  // an RSA signature of 16384 bits has 2732

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

}  // namespace spc
