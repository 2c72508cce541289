// Sources of an image to push.

#include "base/format.hpp"
#include "base/hash.hpp"
#include "export/push.hpp"
#include "local/remote_file.hpp"

namespace spc {

namespace {

using user_source::FilePart;
using user_source::LocalImage;

constexpr std::size_t kMaxDocument = 4 << 20;
constexpr char kOciManifest[] = "application/vnd.oci.image.manifest.v1+json";

class LocalSource final : public PushSource {
 public:
  LocalSource(std::unique_ptr<LocalImage> image, PushedManifest manifest)
      : PushSource(std::move(manifest)), image_(std::move(image)) {}
  Result<FilePart> blob(const Descriptor& wanted) override {
    auto part = SPC_TRY(image_->blob(wanted.digest));
    if (!part) return Error(ErrorKind::not_found, "the image lacks blob " + wanted.digest.str());
    return *std::move(part);
  }

 private:
  std::unique_ptr<LocalImage> image_;
};

/// Fetches an object of the repository into an unnamed file. If `size` is unknown, at most
/// kMaxDocument bytes.
Result<FilePart> fetched(RegistrySession& session, const std::string& path, const std::string& what,
                         const Digest& digest, std::optional<std::uint64_t> size,
                         const char* accept) {
  auto file = SPC_TRY(user_source::temporary_file(size.value_or(kMaxDocument)));
  const auto got = SPC_TRY(fetch_file(session,
                                      {.path = path,
                                       .what = what,
                                       .accept = accept,
                                       .max_size = kMaxDocument,
                                       .exact_size = size,
                                       .upload = {}},
                                      file.get()));
  if (got.digest != digest) return Error(ErrorKind::corrupt, what + ": does not match its digest");
  auto part = SPC_TRY(user_source::ordinary_file(std::move(file), what));
  part.media_type = got.media_type;
  return part;
}

class RegistrySource final : public PushSource {
 public:
  RegistrySource(RegistrySession& session, PushedManifest manifest)
      : PushSource(std::move(manifest)), session_(session) {}
  Result<FilePart> blob(const Descriptor& wanted) override {
    auto part = fetched(session_, "blobs/" + wanted.digest.str(), "blob " + wanted.digest.str(),
                        wanted.digest, wanted.size, "");
    if (part) return part;
    const Error& error = part.error();
    return Error(error.kind(), error.what(), error.sys_errno(),
                 "push --flatten sends the files of a pulled image as one layer");
  }
  [[nodiscard]] std::string repository_at(const std::string& registry) const override {
    return registry == session_.registry ? session_.repository : std::string();
  }

 private:
  RegistrySession& session_;
};

/// An image of one local layer on top of an image's layers at a registry.
class LayeredSource final : public PushSource {
 public:
  LayeredSource(std::unique_ptr<PushSource> image, RegistrySession& session)
      : PushSource(image->manifest()), image_(std::move(image)), below_(session, manifest()) {}
  Result<FilePart> blob(const Descriptor& wanted) override {
    auto own = image_->blob(wanted);
    return own || own.error().kind() != ErrorKind::not_found ? std::move(own) : below_.blob(wanted);
  }
  [[nodiscard]] std::string repository_at(const std::string& registry) const override {
    return below_.repository_at(registry);
  }

 private:
  std::unique_ptr<PushSource> image_;
  RegistrySource below_;
};

}  // namespace

Result<PushedManifest> PushedManifest::parse(std::string text, const std::string& media_type,
                                             const std::string& what) {
  auto parsed = SPC_TRY(parse_manifest(text, media_type, what));
  if (!std::holds_alternative<Manifest>(parsed))
    return Error(ErrorKind::invalid, what + ": is not the manifest of one image");
  const auto document = SPC_TRY(parse_json_object(text, what));
  const auto own_type = SPC_TRY(document.text("mediaType"));
  PushedManifest manifest;
  manifest.media_type = own_type ? *own_type : media_type.empty() ? kOciManifest : media_type;
  manifest.parsed = std::get<Manifest>(std::move(parsed));
  manifest.text = std::move(text);
  return manifest;
}

Result<std::unique_ptr<PushSource>> source_from(std::unique_ptr<LocalImage> image,
                                                const Platform& platform, const std::string& name) {
  const std::string what = "manifest of " + in_quotes(name);
  FilePart part = image->document();
  std::string text = SPC_TRY(read_part(part, kMaxDocument, what));
  for (int depth = 0; depth < 3; ++depth) {
    auto parsed = SPC_TRY(parse_manifest(text, part.media_type, what));
    if (std::holds_alternative<Manifest>(parsed)) break;
    const auto entry = SPC_TRY(choose_platform(std::get<Index>(parsed), platform, what));
    const auto chosen = SPC_TRY(image->blob(entry.descriptor.digest));
    if (!chosen)
      return Error(ErrorKind::not_found,
                   what + ": lacks its part " + entry.descriptor.digest.str());
    part = *chosen;
    part.media_type = entry.descriptor.media_type;
    text = SPC_TRY(read_part(part, kMaxDocument, what));
    if (Sha256::of(text) != entry.descriptor.digest)
      return Error(ErrorKind::corrupt, what + ": does not match its digest");
  }
  auto manifest = SPC_TRY(PushedManifest::parse(std::move(text), part.media_type, what));
  return std::unique_ptr<PushSource>(
      std::make_unique<LocalSource>(std::move(image), std::move(manifest)));
}

std::unique_ptr<PushSource> with_layers_of(std::unique_ptr<PushSource> image,
                                           RegistrySession& session) {
  return std::make_unique<LayeredSource>(std::move(image), session);
}

Result<std::unique_ptr<PushSource>> source_from(RegistrySession& session, std::string manifest,
                                                const Digest& digest) {
  const std::string what = "manifest " + digest.str();
  std::string type;
  if (manifest.empty()) {
    const auto part = SPC_TRY(
        fetched(session, "manifests/" + digest.str(), what, digest, std::nullopt, kManifestAccept));
    manifest = SPC_TRY(read_part(part, kMaxDocument, what));
    type = part.media_type;
  }
  auto parsed = SPC_TRY(PushedManifest::parse(std::move(manifest), type, what));
  return std::unique_ptr<PushSource>(std::make_unique<RegistrySource>(session, std::move(parsed)));
}

}  // namespace spc
