#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "local/image_files.hpp"
#include "local/local_image.hpp"
#include "registry/client.hpp"
#include "registry/manifest.hpp"

namespace spc {

// --- push source ---

/// An image's manifest with the exact bytes of its registry or archive, so that the pushed image
/// keeps its digest.
struct PushedManifest {
  std::string text;
  std::string media_type;
  Manifest parsed;

  /// Parses a manifest. `what` names it in messages.
  static Result<PushedManifest> parse(std::string text, const std::string& media_type,
                                      const std::string& what);
};

/// Source of an image to push.
class PushSource {
 public:
  virtual ~PushSource() = default;
  [[nodiscard]] const PushedManifest& manifest() const { return manifest_; }
  /// Returns the bytes of a blob. They match the digest unless the file changes.
  virtual Result<user_source::FilePart> blob(const Descriptor& wanted) = 0;
  /// Returns the repository of `registry` that has the blobs, or an empty string.
  [[nodiscard]] virtual std::string repository_at(const std::string& /*registry*/) const {
    return {};
  }

 protected:
  explicit PushSource(PushedManifest manifest) : manifest_(std::move(manifest)) {}

 private:
  PushedManifest manifest_;
};

/// Returns the source for an image of the user: an archive, a layout, one of podman's or docker's.
/// If it has several platforms, the one for `platform`.
Result<std::unique_ptr<PushSource>> source_from(std::unique_ptr<user_source::LocalImage> image,
                                                const Platform& platform, const std::string& name);
/// Returns a source for an image that contains only the layers on top of another image. The other
/// layers are fetched from that image's registry. `session` is borrowed.
std::unique_ptr<PushSource> with_layers_of(std::unique_ptr<PushSource> image,
                                           RegistrySession& session);

/// Returns the source for an image of a registry. Requested blobs are fetched into unnamed files
/// and checked. `manifest` is the manifest known from a store; if empty, it is fetched as `digest`.
/// `session` is borrowed.
Result<std::unique_ptr<PushSource>> source_from(RegistrySession& session, std::string manifest,
                                                const Digest& digest);

// --- registry push ---

/// Writer to one repository of a registry by the OCI distribution specification. Each call runs its
/// requests to their end.
class RegistryPush {
 public:
  /// `session` belongs to that repository, has no mirrors and is borrowed.
  explicit RegistryPush(RegistrySession& session) : session_(session) {}

  /// Returns whether the repository has the blob.
  Result<bool> has_blob(const Descriptor& blob);
  /// Mounts a blob of another repository of this registry. Returns false if the registry does not
  /// allow it.
  Result<bool> mount(const Descriptor& blob, const std::string& repository);

  /// Sends a blob in pieces. After a broken connection or a failure of the registry it continues at
  /// the offset that the registry reports, at most four times without progress. `meter`: called
  /// with the bytes of this blob sent so far.
  Result<void> upload(const Descriptor& blob, const user_source::FilePart& bytes,
                      const std::function<void(std::uint64_t)>& meter);

  /// Stores a manifest under `tag`.
  Result<void> put_manifest(const std::string& text, const std::string& media_type,
                            const std::string& tag);

 private:
  struct Upload;
  Result<HttpHead> send(FetchRequest request);
  Result<std::string> begin_upload(const Descriptor& blob);
  Result<std::string> location_of(const HttpHead& head) const;
  Result<void> send_rest(Upload& upload);
  Result<void> find_place(Upload& upload);

  RegistrySession& session_;
};

// --- image push ---

/// Numbers of blobs in a push, by outcome.
struct PushCounts {
  unsigned sent = 0;
  unsigned there = 0;
  unsigned mounted = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// Reports the bytes of the image that the registry has, and the total.
using PushMeter = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Pushes the image to the repository of `session` and assigns `tag` once all blobs are there.
/// Blobs that the repository has are skipped, and those of other repositories of the registry are
/// mounted.
Result<PushCounts> push_image(PushSource& from, RegistrySession& session, const std::string& tag,
                              const PushMeter& meter);

}  // namespace spc
