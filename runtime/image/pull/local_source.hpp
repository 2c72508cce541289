#pragma once

#include <string>

#include "image/pull/image_source.hpp"
#include "image/registry/user_source_link.hpp"

namespace spc {

/// An image that only its user may read: an archive, a layout, a local storage. A process of the
/// user finds it and hands out parts of files, which are read here; the user can change their
/// content at any time, so digests decide, as for a registry.
class LocalSource final : public ImageSource {
 public:
  /// `link` is borrowed; `name` names the image in messages.
  LocalSource(UserSourceLink& link, std::string name) : link_(link), name_(std::move(name)) {}

  std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) override;

 private:
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string manifest_name(const std::optional<Digest>& digest) const override;
  Result<Document> get_top() override;
  Result<Document> get_manifest(const Digest& wanted) override;
  Result<std::string> get_config(const Descriptor& wanted) override;

  UserSourceLink& link_;
  std::string name_;
};

}  // namespace spc
