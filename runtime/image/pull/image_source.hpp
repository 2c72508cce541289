#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/registry/blob_stream.hpp"
#include "image/registry/fetch.hpp"
#include "image/registry/manifest.hpp"

namespace spc {

/// An image without its layers; all bytes matched their digests before they were parsed.
struct ResolvedImage {
  Digest digest;  ///< of the image manifest
  std::string manifest_bytes;
  Manifest manifest;
  std::string config_bytes;
  ImageConfig config;
  std::vector<Digest> indexes;  ///< that led to it
};

/// Source of an image: a repository in a registry, or files that only the user may read.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  /// Follows indexes to the image for `platform` and fetches its manifest and configuration. An
  /// image for another platform is refused here, before any layer is fetched.
  Result<ResolvedImage> resolve(const Platform& platform);

  /// Fetches a layer's blob into `sink`, which checks the digest.
  virtual std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) = 0;

 protected:
  static constexpr std::uint64_t kMaxManifest = 4 << 20;
  static constexpr std::uint64_t kMaxConfig = 8 << 20;

  struct Document {
    std::string bytes;
    std::string media_type;  ///< as stated by the source; may be empty
    Digest digest;           ///< of `bytes`
  };
  /// Name for messages: the image, and the manifest or index that it resolves to or that `digest`
  /// names.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string manifest_name(const std::optional<Digest>& digest) const = 0;

  /// What the image's name resolves to.
  virtual Result<Document> get_top() = 0;
  /// These two return bytes of the requested digest, or an error.
  virtual Result<Document> get_manifest(const Digest& wanted) = 0;
  virtual Result<std::string> get_config(const Descriptor& wanted) = 0;
};

}  // namespace spc
