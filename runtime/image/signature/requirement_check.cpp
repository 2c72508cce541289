#include "image/signature/requirement_check.hpp"

#include <algorithm>

#include "base/base64.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/sha256.hpp"
#include "base/trusted_file.hpp"
#include "image/signature/attachment.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostKey = 64 << 10;

Result<PublicKey> key_in_file(const std::string& path, uid_t owner) {
  const auto file = SPC_TRY(open_trusted_file(path, "signature key", owner));
  const std::string pem =
      SPC_TRY_DURING("signature key " + in_quotes(path), read_file(file.get(), kMostKey));
  return PublicKey::parse(pem, path);
}

Result<PublicKey> key_in_text(const std::string& text) {
  const auto pem = from_base64(text);
  if (!pem) return Error(ErrorKind::invalid, "keyData: is not base64");
  return PublicKey::parse(*pem, "keyData " + Sha256::of(*pem).str().substr(0, 19));
}

}  // namespace

/// The further a signature comes, the more it tells about what is wrong.
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
    wanted.keys.push_back(SPC_TRY(key_in_file(path, owner)));
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
  // Only from here on is the payload what a trusted person wrote.
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
