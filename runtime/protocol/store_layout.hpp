#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/digest.hpp"

namespace spc::store_layout {

/// Paths in an image store, of the node or of a user, below its directory. Files that determine the
/// content of a container are owned by root, and the agent writes them: layers, records, names and
/// grants.
///
///   layers/sha256/HEX.sqsh   a layer; the name is derived from the digest of its blob
///   records/HEX              the record of an image, named by the digest of its manifest
///                            (image_record.hpp)
///   names/HEX                the last digest of a public name (reference/reference.hpp)
///   grants/UID.HEX           the same for a private image granted to this user; not for users
///   images/HEX               its modification time is the time until which everybody may use an
///                            image
///   images/origins/HEX       the origin of the image, and its permitted users; not for users
///   images/signatures/HEX    the signatures that have admitted it; not for users
///   public/HEX               description of a public image for users: its record, with platform
///                            and size in the settings; the service user writes it
inline constexpr char kLayers[] = "layers/sha256";
inline constexpr char kRecords[] = "records";
inline constexpr char kNames[] = "names";
inline constexpr char kGrants[] = "grants";
inline constexpr char kImages[] = "images";
// Below images/:
inline constexpr char kOrigins[] = "origins";
inline constexpr char kSignatures[] = "signatures";

inline constexpr std::string_view kLayerEnding = ".sqsh";

/// Returns the name of a layer in its directory.
inline std::string layer_file(const Digest& blob) { return blob.hex() + std::string(kLayerEnding); }

// Returns the layer's path below the store's directory.
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
