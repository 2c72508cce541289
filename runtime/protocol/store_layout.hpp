#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/digest.hpp"

namespace spc::store_layout {

/// Where things lie in an image store, of the node or of a user, below its directory. What decides
/// what a container is made of is root's, and written by the agent: layers, records, names and
/// grants.
///
///   layers/sha256/HEX.sqsh   a layer, named by the digest of its blob
///   records/HEX              the record of an image, named by the digest of its manifest
///   (image_record.hpp) names/HEX                the digest that a public name meant last
///   (image/reference/named_image.hpp) grants/UID.HEX           the same for a private image that
///   this user was let in to; not for users images/HEX               until when everybody may use
///   an image: the time of this file's last change images/origins/HEX       where the image is
///   from, and who may use it; not for users images/signatures/HEX    the signatures that have
///   admitted it; not for users
inline constexpr char kLayers[] = "layers/sha256";
inline constexpr char kRecords[] = "records";
inline constexpr char kNames[] = "names";
inline constexpr char kGrants[] = "grants";
inline constexpr char kImages[] = "images";
// Below images/:
inline constexpr char kOrigins[] = "origins";
inline constexpr char kSignatures[] = "signatures";

inline constexpr std::string_view kLayerEnding = ".sqsh";

/// Of a layer, in its directory.
inline std::string layer_file(const Digest& blob) { return blob.hex() + std::string(kLayerEnding); }

// From the store's directory.
inline std::string layer_path(const Digest& blob) {
  return std::string(kLayers) + "/" + layer_file(blob);
}
inline std::string record_path(const Digest& manifest) {
  return std::string(kRecords) + "/" + manifest.hex();
}
inline std::string grant_path(std::uint64_t uid, const Digest& key) {
  return std::string(kGrants) + "/" + std::to_string(uid) + "." + key.hex();
}
inline std::string name_path(const Digest& key) { return std::string(kNames) + "/" + key.hex(); }
inline std::string origin_path(const Digest& manifest) {
  return std::string(kImages) + "/" + kOrigins + "/" + manifest.hex();
}
inline std::string signatures_path(const Digest& manifest) {
  return std::string(kImages) + "/" + kSignatures + "/" + manifest.hex();
}

}  // namespace spc::store_layout
