#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config.hpp"
#include "image/fetch.hpp"
#include "image/image_source.hpp"
#include "image/reference.hpp"

namespace spc {

/// One repository at a registry, asked without credentials.
class Repository final : public ImageSource {
 public:
  Repository(HttpClient& http, Log& log, const ImageReference& reference, const RegistryConfig& config);

  /// What a tag stands for now, by one HEAD request: the digest of a manifest or of an index.
  Result<Digest> ask_digest(const std::string& tag_or_digest);

  /// Whether the registry gives out this very manifest, byte by byte.
  Result<void> confirm(const Digest& manifest);
  /// To whom, by its last answer.
  [[nodiscard]] Access access() const { return session_.access; }
  [[nodiscard]] std::string tag_or_digest() const { return reference_.tag_or_digest(); }

  std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) override;

 private:
  [[nodiscard]] std::string name() const override { return reference_.canonical(); }
  [[nodiscard]] std::string manifest_name(const std::optional<Digest>& digest) const override;
  Result<Document> get_top() override;
  Result<Document> get_manifest(const Digest& wanted) override;
  Result<std::string> get_config(const Descriptor& wanted) override;

  Result<Document> get_document(const std::string& tag_or_digest, const std::optional<Digest>& expected);
  Result<HttpHead> run(Fetch& fetch);

  ImageReference reference_;
  RegistrySession session_;
};

}  // namespace spc
