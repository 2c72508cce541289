#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/reference/request.hpp"

namespace spc {

/// Names a blob by digest and size; `urls` and embedded data are ignored.
struct Descriptor {
  std::string media_type;
  Digest digest;
  std::uint64_t size = 0;
};

/// An OCI or Docker v2 schema 2 image manifest. All its layers can be converted.
struct Manifest {
  Descriptor config;
  std::vector<Descriptor> layers;  ///< bottom layer first
  /// kLayersOf, as it is written: REGISTRY/REPOSITORY@DIGEST of the image whose layers lie below
  /// the last one; empty: none.
  std::string layers_of;
};

/// The annotation of an image that was saved as one layer on another: its file has no other layer.
inline constexpr char kLayersOf[] = "io.spank-container.layers-of";

/// An OCI index or a Docker manifest list.
struct Index {
  struct Entry {
    Descriptor descriptor;
    bool is_index = false;
    bool has_platform = false;
    Platform platform;
  };
  std::vector<Entry> entries;
};

/// Parses a registry's response. Its own `mediaType` decides; `content_type` only if it has none. A
/// document that contradicts itself or is both manifest and index is refused (CVE-2021-41190).
/// `what` names it in messages.
Result<std::variant<Manifest, Index>> parse_manifest(std::string_view bytes,
                                                     std::string_view content_type,
                                                     std::string_view what);

/// The entry for `platform`. If there is none, the error lists the platforms.
Result<Index::Entry> choose_platform(const Index& index, const Platform& platform,
                                     std::string_view what);

/// The relevant part of an image configuration.
struct ImageConfig {
  Platform platform;  ///< members are empty if the image does not state them
  std::vector<Digest> diff_ids;
  std::vector<std::string> env;  ///< NAME=value each
  std::vector<std::string> entrypoint;
  std::vector<std::string> cmd;
  std::string workdir;
  std::string user;
  std::vector<std::string> volumes;  ///< shown, never used; as are the following
  std::vector<std::string> ports;
};
Result<ImageConfig> parse_image_config(std::string_view bytes, std::string_view what);

/// What a task is given of it, as records `key=value\0`: protocol/image_record.hpp.
std::string settings_of(const ImageConfig& config);

/// The Accept header for manifests.
extern const char* const kManifestAccept;

}  // namespace spc
