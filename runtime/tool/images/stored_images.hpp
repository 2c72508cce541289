#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "image/store/store.hpp"
#include "share/shared_store.hpp"

namespace spc::tool {

// --- catalogue ---

/// Returns the entries sorted by name, empty if the site has no catalogue. An invalid file is an
/// error that names the file.
Result<std::vector<CatalogueEntry>> read_catalogue();

// --- stored images ---

/// A file in names/.
struct StoredName {
  std::string name;  ///< ImageReference::canonical(), or the location of a local image
  Digest manifest;
  std::int64_t asked_at = 0;  ///< seconds since 1970 when it last resolved to this manifest
};

/// An image in a store, as far as the caller may see it.
struct ListedImage {
  Digest digest;
  std::vector<StoredName> names;
  /// Further names under which users have requested the image, mostly tags. They are unverified
  /// claims of users. Empty if the caller may not read grants/.
  std::vector<StoredName> asked_as;
  std::optional<ImageRecord> record;  ///< empty: the caller may not read it
  ImageOrigins origins;               ///< names of a private image are only here
  std::uint64_t bytes = 0;            ///< size of its layers in the store
  bool complete = true;               ///< all layers are present
  std::int64_t used_at = 0;           ///< seconds since 1970; 0: unknown

  [[nodiscard]] std::string platform() const {
    return origins.all().empty() ? std::string() : origins.all().front().platform;
  }
  /// Returns `names` and `asked_as`, and for an image without `names` those of its origins.
  [[nodiscard]] std::vector<StoredName> all_names() const;
};

/// Lists all images of the store. `store` is the store's directory. In the node's store, users
/// other than root see only public images, and these by the description for users.
Result<std::vector<ListedImage>> list_images(int store);

/// Finds an image: by a reference as in --container-image, a name as shown by `images`, or at least
/// 6 digits of a digest. Returns ErrorKind::not_found if there is none. With `or_asked_as`, falls
/// back to the unverified names of users' requests.
Result<ListedImage> find_image(int store, const std::string& text,
                               const std::string& default_registry, bool or_asked_as = false);

/// Returns the image with this digest, with empty `names`.
Result<ListedImage> image_of(int store, const Digest& digest);

/// Returns the keys whose signatures admitted the image.
std::vector<std::string> signed_by(int store, const Digest& digest);

/// Opens the image's layers, bottom first. A lock on each prevents eviction while the file is open
/// in any process.
Result<std::vector<UniqueFd>> open_layers(int store, const ListedImage& image);

/// Returns the store's file name for NAME.
std::string ref_file(const std::string& name);

/// Removes a layer from the store. Returns false if a container uses it.
Result<bool> remove_layer(int store, const Digest& layer);

// --- shared images ---

/// Opens the site's shared store, which belongs to the service user. Root becomes that user in this
/// process, permanently: network file systems may deny root, and root must not access these files.
/// Returns ErrorKind::not_found if the site has no shared store.
Result<SharedStore> open_shared_store();

/// An image whose manifest is in the shared store.
struct SharedImage {
  Digest digest;
  std::vector<std::string> places;  ///< registries and repositories that delivered it
  std::string platform;             ///< empty: unknown
  std::size_t layers = 0;
  std::uint64_t bytes = 0;  ///< size of its blobs in the shared store
  bool complete = true;     ///< all blobs are present
  std::int64_t used_at = 0;
};
/// Lists the images of the site's shared store for root and the service user. Empty for others, and
/// if the file system hangs.
Result<std::vector<SharedImage>> list_shared_images();

}  // namespace spc::tool
