#pragma once

#include <string>
#include <string_view>

#include "base/digest.hpp"

namespace spc::store_layout {

/// Where things lie in an image store, of the node or of a user, below its directory:
///
///   layers/sha256/HEX.sqsh   a layer, named by the digest of its blob
///   images/HEX               the record of an image, named by the digest of its manifest (image_record.hpp)
///   images/origins/HEX       where the image is from, and who may use it; not for users
///   images/signatures/HEX    the signatures that have admitted it; not for users
///   images/grants/UID/NAME   a name of a private image that this user was let in to; not for users
///   refs/NAME                the digest that a public name meant last
inline constexpr char kLayers[] = "layers/sha256";
inline constexpr char kImages[] = "images";
inline constexpr char kRefs[] = "refs";
// Below images/:
inline constexpr char kOrigins[] = "origins";
inline constexpr char kGrants[] = "grants";
inline constexpr char kSignatures[] = "signatures";

inline constexpr std::string_view kLayerEnding = ".sqsh";

/// Of a layer, in its directory.
inline std::string layer_file(const Digest& blob) { return blob.hex() + std::string(kLayerEnding); }

// From the store's directory.
inline std::string layer_path(const Digest& blob) { return std::string(kLayers) + "/" + layer_file(blob); }
inline std::string record_path(const Digest& manifest) { return std::string(kImages) + "/" + manifest.hex(); }
inline std::string origin_path(const Digest& manifest) { return std::string(kImages) + "/" + kOrigins + "/" + manifest.hex(); }
inline std::string signatures_path(const Digest& manifest) {
  return std::string(kImages) + "/" + kSignatures + "/" + manifest.hex();
}
inline std::string ref_path(std::string_view name) { return std::string(kRefs) + "/" + std::string(name); }

}  // namespace spc::store_layout
