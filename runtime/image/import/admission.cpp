#include "image/import/admission.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/format.hpp"
#include "base/sha256.hpp"
#include "image/signature/attachment.hpp"
#include "image/signature/kept_signatures.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostIndexes = 4;  // the newest: each costs a request

}  // namespace

Result<Admission> Admission::prepare(const Config& config, const ImageStore& store,
                                     const ImageReference& image, const ImageReference& name) {
  Admission admission(config, store, image, name);
  const std::string& path = config.site.signature_policy;
  if (path.empty()) return admission;
  const auto policy = SPC_TRY(TrustPolicy::read(path, ::geteuid()));
  admission.check_ =
      SPC_TRY(RequirementCheck::prepare(policy.for_registry(name), path, ::geteuid()));
  return admission;
}

Result<void> Admission::decide_digest(const Digest& manifest) const {
  if (!config_.registry(image_.registry).require_digest || image_.digest) return {};
  return Error(ErrorKind::refused, formatted("this site allows images from {} by digest only",
                                             in_quotes(image_.registry)))
      .hint(formatted("currently {}/{}@{}", image_.registry, image_.repository, manifest.str()));
}

Result<void> Admission::decide(std::string_view manifest, std::vector<Digest> indexes,
                               PullPolicy pull, Repository& repository) {
  manifest_ = Sha256::of(manifest);
  SPC_TRY(decide_digest(manifest_));
  if (!check_ || !check_->needs_signatures()) return {};
  indexes.resize(std::min(indexes.size(), kMostIndexes));
  SignedImage image{.name = name_, .digests = std::move(indexes)};
  image.digests.push_back(manifest_);

  const std::string kept = SPC_TRY(store_.signatures(manifest_));
  found_ = parse_kept_signatures(kept);
  if (satisfied(image)) {
    accepted_.clear();  // they are there
    return {};
  }
  if (pull == PullPolicy::never) {
    return Error(ErrorKind::refused, refusal_->what())
        .hint("drop --container-pull=never to look for new signatures");
  }
  found_.clear();
  return ask(image, repository);
}

/// Where cosign stores signatures: under a tag made of the digest, or as referrers of it.
Result<void> Admission::ask(const SignedImage& image, Repository& repository) {
  for (const Digest& subject : image.digests) {
    SPC_TRY(add_attached(signature_tag(subject), repository));
    if (satisfied(image)) return {};
  }
  for (const Digest& subject : image.digests) {
    const auto added = add_referrers(subject, repository);
    // What was found says more than that there is nobody to ask for more.
    if (!added && found_.empty()) return added.error();
    if (satisfied(image)) return {};
  }
  if (!has_bundles_) return *std::move(refusal_);
  return Error(ErrorKind::refused, refusal_->what())
      .hint(
          "it has sigstore bundles, which are not supported: sign it with cosign sign "
          "--new-bundle-format=false");
}

bool Admission::satisfied(const SignedImage& image) {
  auto accepted = check_->accept(found_, image);
  if (!accepted) {
    refusal_ = std::move(accepted).error();
    return false;
  }
  accepted_ = *std::move(accepted);
  return true;
}

/// False: there is nothing of that name.
Result<bool> Admission::add_attached(const std::string& tag_or_digest, Repository& repository) {
  const std::string what = "signatures " + in_quotes(tag_or_digest);
  const auto manifest = SPC_TRY(repository.find_manifest(tag_or_digest, what));
  if (!manifest) return false;
  std::string payload;
  std::optional<Digest> payload_digest;
  auto signatures = SPC_TRY(parse_attachment(*manifest, what));
  for (AttachedSignature& attached : signatures) {
    if (found_.size() == kMostSignatures)
      return Error(ErrorKind::refused, what + ": there are too many");
    // Several people sign the same text.
    if (payload_digest != attached.payload)
      payload = SPC_TRY(repository.get_small(attached.payload, attached.payload_size, what));
    payload_digest = attached.payload;
    found_.push_back({.payload = payload, .signature = std::move(attached.signature), .key = ""});
  }
  return true;
}

Result<void> Admission::add_referrers(const Digest& subject, Repository& repository) {
  const std::string what = "referrers of " + in_quotes(subject.str());
  auto index = SPC_TRY(repository.find_referrers(subject, what));
  if (!index)
    index = SPC_TRY(
        repository.find_manifest("sha256-" + subject.hex(), what));  // a registry without the API
  if (!index) return {};
  const auto found = SPC_TRY(parse_referrers(*index, what));
  has_bundles_ = has_bundles_ || found.has_bundles;
  for (const Digest& referrer : found.signatures) SPC_TRY(add_attached(referrer.str(), repository));
  return {};
}

Result<void> Admission::keep() const {
  if (accepted_.empty()) return {};
  const std::string kept = SPC_TRY(store_.signatures(manifest_));
  return store_.write_signatures(manifest_,
                                 serialize(merged(accepted_, parse_kept_signatures(kept))));
}

}  // namespace spc
