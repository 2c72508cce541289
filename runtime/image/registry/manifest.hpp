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

/// Names a blob: its digest and size decide, `urls` and embedded data are ignored.
struct Descriptor {
  std::string media_type;
  Digest digest;
  std::uint64_t size = 0;
};

/// An OCI or Docker v2 schema 2 image manifest. Every layer is one that we can convert.
struct Manifest {
  Descriptor config;
  std::vector<Descriptor> layers;  ///< bottom layer first
};

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

/// What the registry's answer is. Its own `mediaType` decides; `content_type` only where it has none. A document that
/// contradicts itself or is both manifest and index is refused (CVE-2021-41190). `what` names it in messages.
Result<std::variant<Manifest, Index>> parse_manifest(std::string_view bytes, std::string_view content_type,
                                                     std::string_view what);

/// The entry for `platform`. Without one the error lists what there is.
Result<Index::Entry> choose_platform(const Index& index, const Platform& platform, std::string_view what);

/// The part of an image configuration that matters here.
struct ImageConfig {
  Platform platform;  ///< empty members where the image does not say
  std::vector<Digest> diff_ids;
  std::vector<std::string> env;  ///< NAME=value each
  std::vector<std::string> entrypoint;
  std::vector<std::string> cmd;
  std::string workdir;
  std::string user;
  std::vector<std::string> volumes;  ///< told, never acted upon, as the next
  std::vector<std::string> ports;
};
Result<ImageConfig> parse_image_config(std::string_view bytes, std::string_view what);

/// Everything manifests are asked for with: the value of the Accept header.
extern const char* const kManifestAccept;

}  // namespace spc
