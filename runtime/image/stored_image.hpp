#pragma once

#include <optional>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config.hpp"
#include "image/repository.hpp"
#include "image/store.hpp"

namespace spc {

/// What the store knows of an image, and whether that may be used as it is.
///
/// Whoever may pull an image without credentials may use it; that this is so was seen when it was fetched and holds for
/// `public_ttl` seconds, after which the registry has to say so again.
class StoredImage {
 public:
  /// Everything is borrowed.
  StoredImage(const ImageStore& store, const ImageReference& reference, const Platform& platform, const Config& config)
      : store_(store), reference_(reference), platform_(platform), config_(config) {}

  /// The image if it is complete in the store and `pull` allows it, after one HEAD request or none. A registry that
  /// does not answer is a warning as long as the image is known to be public. Empty: it has to be fetched.
  Result<std::optional<Digest>> usable(PullPolicy pull, Repository& repository, Log& log) const;

  /// Writes the record and the reference of an image whose layers are all there.
  Result<void> keep(const ResolvedImage& image) const;

 private:
  struct Known {
    ImageStore::Ref ref;
    ImageRecord record;
  };
  Result<std::optional<Known>> find() const;
  Result<void> renew(Known known) const;

  const ImageStore& store_;
  const ImageReference& reference_;
  const Platform& platform_;
  const Config& config_;
};

}  // namespace spc
