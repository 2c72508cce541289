#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/registry/blob_stream.hpp"
#include "image/registry/fetch.hpp"
#include "image/registry/manifest.hpp"

namespace spc {

/// Everything about an image but its layers; all bytes matched their digests before they were parsed.
struct ResolvedImage {
  Digest digest;  ///< of the image manifest
  std::string manifest_bytes;
  Manifest manifest;
  std::string config_bytes;
  ImageConfig config;
  std::vector<Digest> indexes;  ///< that led to it
};

/// Where an image comes from: a repository at a registry, or what only its user may read.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  /// Follows indexes to the image for `platform` and gets its manifest and configuration. An image for another platform is
  /// refused here, before any layer is touched.
  Result<ResolvedImage> resolve(const Platform& platform);

  /// Brings a layer's blob into `sink`. That the bytes have the layer's digest is for the sink to check.
  virtual std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) = 0;

 protected:
  static constexpr std::uint64_t kMaxManifest = 4 << 20;
  static constexpr std::uint64_t kMaxConfig = 8 << 20;

  struct Document {
    std::string bytes;
    std::string media_type;  ///< as the source says; may be empty
    Digest digest;           ///< of `bytes`
  };
  /// How messages call the image, and the manifest or index that it stands for or that `digest` names.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string manifest_name(const std::optional<Digest>& digest) const = 0;

  /// What the image's name stands for.
  virtual Result<Document> get_top() = 0;
  /// These two answer with bytes of the wanted digest or with an error.
  virtual Result<Document> get_manifest(const Digest& wanted) = 0;
  virtual Result<std::string> get_config(const Descriptor& wanted) = 0;
};

}  // namespace spc
