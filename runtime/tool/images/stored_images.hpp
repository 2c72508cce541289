#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/store/record.hpp"

namespace spc::tool {

/// A file in names/.
struct StoredName {
  std::string name;  ///< ImageReference::canonical(), or the location of a local image
  Digest manifest;
  std::int64_t asked_at =
      0;  ///< seconds since 1970: when it was last seen to resolve to this manifest
};

/// An image in a store, as far as the caller may see it.
struct ListedImage {
  Digest digest;
  std::vector<StoredName> names;
  /// What else users have asked for it by, tags above all: they say so, this node has seen no
  /// proof. Who may not read grants/ sees none.
  std::vector<StoredName> asked_as;
  std::optional<ImageRecord> record;  ///< empty: the caller may not read it
  ImageOrigins origins;               ///< a private image has names here only
  std::uint64_t bytes = 0;            ///< of its layers in the store
  bool complete = true;               ///< all layers are present
  std::int64_t used_at = 0;           ///< seconds since 1970; 0: unknown

  [[nodiscard]] std::string platform() const {
    return origins.all().empty() ? std::string() : origins.all().front().platform;
  }
};

/// Everything in the store. `store` is its directory. Of the node's store, users other than root
/// see names and digests only.
Result<std::vector<ListedImage>> list_images(int store);

/// The image named by `text`: a reference as in --container-image, a name as shown by `images`, or
/// at least 6 digits of a digest. ErrorKind::not_found if there is none. `or_asked_as`: then the
/// one that users have asked for by it, which proves nothing.
Result<ListedImage> find_image(int store, const std::string& text,
                               const std::string& default_registry, bool or_asked_as = false);

/// The one with this digest; `names` stays empty.
Result<ListedImage> image_of(int store, const Digest& digest);

/// The keys whose signatures have admitted it.
std::vector<std::string> signed_by(int store, const Digest& digest);

/// Opens its layers, bottom first. A lock on each prevents eviction while the file is open
/// anywhere.
Result<std::vector<UniqueFd>> open_layers(int store, const ListedImage& image);

/// NAME as the store writes it.
std::string ref_file(const std::string& name);

/// Removes a layer from the store unless a container uses it (false).
Result<bool> remove_layer(int store, const Digest& layer);

}  // namespace spc::tool
