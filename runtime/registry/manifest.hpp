#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "reference/request.hpp"

namespace spc {

// --- JSON objects ---

/// Parses a JSON object from a registry, a program or a user's file, within JsonLimits. `what`
/// names the document in messages, for example `manifest of "registry:5000/x:1"`.
Result<Json> parse_json_object(std::string_view text, std::string_view what);

// --- manifest ---

/// Digest, size and type of a blob. `urls` and embedded data are ignored.
struct Descriptor {
  std::string media_type;
  Digest digest;
  std::uint64_t size = 0;
};

/// An OCI or Docker v2 schema 2 image manifest whose layers can all be converted.
struct Manifest {
  Descriptor config;
  std::vector<Descriptor> layers;  ///< bottom layer first
  /// Value of kLayersOf, REGISTRY/REPOSITORY@DIGEST: the image whose layers are below the last one.
  /// Empty if there is none.
  std::string layers_of;
};

/// Annotation of an image saved as one layer on another image. Its file contains only that layer.
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

/// Parses a registry's response. The document's `mediaType` decides its type, `content_type` only
/// if it has none. Refuses a document that contradicts itself or is both manifest and index
/// (CVE-2021-41190). `what` names it in messages.
Result<std::variant<Manifest, Index>> parse_manifest(std::string_view bytes,
                                                     std::string_view content_type,
                                                     std::string_view what);

/// Returns the entry for `platform`. If there is none, the error lists the platforms.
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
  std::vector<std::string> volumes;  ///< shown, never used, like `ports`
  std::vector<std::string> ports;
};
Result<ImageConfig> parse_image_config(std::string_view bytes, std::string_view what);

/// Returns the task's settings of an image as records `key=value\0` (protocol/image_record.hpp).
std::string settings_of(const ImageConfig& config);

/// The Accept header for manifests.
extern const char* const kManifestAccept;

}  // namespace spc
