#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config.hpp"
#include "image/fetch.hpp"
#include "image/manifest.hpp"
#include "image/reference.hpp"

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

/// One repository at a registry, asked without credentials.
class Repository {
 public:
  Repository(HttpClient& http, Log& log, const ImageReference& reference, const RegistryConfig& config);

  /// What a tag stands for now, by one HEAD request: the digest of a manifest or of an index.
  Result<Digest> ask_digest(const std::string& tag_or_digest);

  /// Follows indexes to the image for `platform` and gets its manifest and configuration.
  Result<ResolvedImage> resolve(const Platform& platform);

  /// Gets a layer's blob into `sink`; whoever has it drives the HttpClient.
  std::unique_ptr<Fetch> fetch_layer(const Descriptor& layer, FetchSink& sink);

 private:
  struct Document {
    std::string bytes;
    std::string content_type;
    Digest digest;
  };
  Result<Document> get_manifest(const std::string& tag_or_digest, const std::optional<Digest>& expected);
  Result<std::string> get_config(const Descriptor& config);
  Result<HttpHead> run(Fetch& fetch);

  ImageReference reference_;
  RegistrySession session_;
};

}  // namespace spc
