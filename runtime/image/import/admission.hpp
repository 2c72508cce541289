#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/pull/repository.hpp"
#include "image/reference/reference.hpp"
#include "image/signature/requirement_check.hpp"
#include "image/store/store.hpp"

namespace spc {

/// Whether the site lets an image of a registry start: `require_digest`, and `signature_policy`
/// with its keys as they are now. Asked at each start, before anything is fetched or used.
/// Signatures that have admitted an image are kept with it, so that the next start asks no
/// registry; they are verified again each time, so no other start depends on what was decided
/// before.
class Admission {
 public:
  /// `image` is what the user asked for, `name` under which name that must be signed: they differ
  /// for a named container. All is borrowed. An error if the policy cannot be read, or nothing can
  /// admit the image.
  static Result<Admission> prepare(const Config& config, const ImageStore& store,
                                   const ImageReference& image, const ImageReference& name);

  /// `manifest`: the very bytes whose layers are converted or mounted; `indexes` led to it. May ask
  /// for signatures unless `pull` is never. What it has found is kept only by keep().
  Result<void> decide(std::string_view manifest, std::vector<Digest> indexes, PullPolicy pull,
                      Repository& repository);
  /// The record of the image is in the store.
  Result<void> keep() const;

 private:
  Admission(const Config& config, const ImageStore& store, const ImageReference& image,
            const ImageReference& name)
      : config_(config), store_(store), image_(image), name_(NamedReference::of(name)) {}

  Result<void> decide_digest(const Digest& manifest) const;
  Result<void> ask(const SignedImage& image, Repository& repository);
  Result<bool> add_attached(const std::string& tag_or_digest, Repository& repository);
  Result<void> add_referrers(const Digest& subject, Repository& repository);
  /// Whether the signatures found so far admit the image; remembers why not.
  bool satisfied(const SignedImage& image);

  const Config& config_;
  const ImageStore& store_;
  const ImageReference& image_;
  NamedReference name_;
  std::optional<RequirementCheck> check_;
  Digest manifest_;
  std::vector<ImageSignature> found_;
  std::vector<ImageSignature> accepted_;  // those to be kept: found now, not in the store
  std::optional<Error> refusal_;
  bool has_bundles_ = false;
};

}  // namespace spc
