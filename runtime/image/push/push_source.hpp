#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/registry/manifest.hpp"
#include "image/registry/registry_session.hpp"
#include "image/user_source/local_image.hpp"

namespace spc {

/// An image as its registry or archive has it: what is pushed keeps its digest.
struct PushedManifest {
  std::string text;
  std::string media_type;
  Manifest parsed;

  /// `what` names it in messages.
  static Result<PushedManifest> parse(std::string text, const std::string& media_type,
                                      const std::string& what);
};

/// Where an image that is pushed comes from.
class PushSource {
 public:
  virtual ~PushSource() = default;
  [[nodiscard]] const PushedManifest& manifest() const { return manifest_; }
  /// The bytes of a blob, whose digest is right unless the file changes.
  virtual Result<user_source::FilePart> blob(const Descriptor& wanted) = 0;
  /// The repository of `registry` that has the blobs; empty: none.
  [[nodiscard]] virtual std::string repository_at(const std::string& /*registry*/) const {
    return {};
  }

 protected:
  explicit PushSource(PushedManifest manifest) : manifest_(std::move(manifest)) {}

 private:
  PushedManifest manifest_;
};

/// An image of the user: an archive, a layout, one of podman's or docker's. Of several platforms,
/// the one for `platform`.
Result<std::unique_ptr<PushSource>> source_from(std::unique_ptr<user_source::LocalImage> image,
                                                const Platform& platform, const std::string& name);
/// The same image, which lacks the layers of another one: they come from there. `session` is
/// borrowed.
std::unique_ptr<PushSource> with_layers_of(std::unique_ptr<PushSource> image,
                                           RegistrySession& session);

/// An image of a registry, fetched blob by blob into nameless files and checked: only those that
/// are asked for. `manifest`: as it is known from a store; empty text: fetched as `digest`.
/// `session` is borrowed.
Result<std::unique_ptr<PushSource>> source_from(RegistrySession& session, std::string manifest,
                                                const Digest& digest);

}  // namespace spc
