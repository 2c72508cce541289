#include "image/user_source/docker_save.hpp"

#include <array>
#include <cstring>

#include "base/format.hpp"
#include "base/sha256.hpp"
#include "image/registry/json.hpp"
#include "image/registry/manifest.hpp"
#include "image/user_source/oci_layout.hpp"

namespace spc::user_source {
namespace {

constexpr std::size_t kMaxSavedDocument = 4 << 20;
constexpr std::size_t kMaxConfig = 8 << 20;

struct SavedImage {
  std::string config;
  std::vector<std::string> tags;
  std::vector<std::string> layers;
};

Result<std::vector<std::string>> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto* items = SPC_TRY(object.list(key));
  for (const Json& item : *items) {
    if (!item.is_text())
      return Error(ErrorKind::corrupt,
                   formatted("\"{}\" has an element that is not a string", key));
    texts.push_back(item.as_text());
  }
  return texts;
}

/// manifest.json is a list; an object around it lets the strict parser read it.
Result<std::vector<SavedImage>> saved_images(const std::string& text) {
  const Json document = SPC_TRY(parse_json_object("{\"images\":" + text + "}", "manifest.json"));
  std::vector<SavedImage> images;
  const auto* items = SPC_TRY(document.list("images"));
  for (const Json& item : *items) {
    if (!item.is_object()) return Error(ErrorKind::corrupt, "an entry is not an object");
    SavedImage image;
    image.config = SPC_TRY(item.text("Config")).value_or("");
    image.tags = SPC_TRY(texts_of(item, "RepoTags"));
    image.layers = SPC_TRY(texts_of(item, "Layers"));
    images.push_back(std::move(image));
  }
  return images;
}

Result<const SavedImage*> choose_saved(const std::vector<SavedImage>& images,
                                       const std::string& reference, const std::string& name) {
  if (reference.empty() && images.size() == 1) return &images.front();
  std::vector<std::string> there;
  for (const SavedImage& image : images) {
    for (const auto& tag : image.tags) {
      if (!reference.empty() && is_same_name(tag, reference)) return &image;
      there.push_back(tag);
    }
    if (image.tags.empty()) there.push_back(image.config);
  }
  return no_such_image(name, reference, there);
}

Result<std::string> media_type_of(const FilePart& layer) {
  std::array<std::byte, 4> magic{};
  SPC_TRY(read_at(layer, 0, magic));
  if (std::memcmp(magic.data(), "\x1f\x8b", 2) == 0)
    return std::string("application/vnd.oci.image.layer.v1.tar+gzip");
  if (std::memcmp(magic.data(), "\x28\xb5\x2f\xfd", 4) == 0)
    return std::string("application/vnd.oci.image.layer.v1.tar+zstd");
  return std::string("application/vnd.oci.image.layer.v1.tar");
}

}  // namespace

Result<std::unique_ptr<LocalImage>> open_docker_save(std::unique_ptr<TarFiles> files,
                                                     const std::string& reference,
                                                     const std::string& name, Log& log) {
  const auto list = SPC_TRY(files->find("manifest.json"));
  if (!list) return Error(ErrorKind::invalid, in_quotes(name) + " has no file manifest.json");
  const auto text = SPC_TRY(read_part(*list, kMaxSavedDocument, "manifest.json"));
  const auto images = SPC_TRY_DURING("manifest.json", saved_images(text));
  const SavedImage* image = SPC_TRY(choose_saved(images, reference, name));

  const auto config_file = SPC_TRY(files->find(image->config));
  if (!config_file)
    return Error(ErrorKind::corrupt,
                 in_quotes(name) + ": the image's configuration is not in the archive");
  const auto config = SPC_TRY(read_part(*config_file, kMaxConfig, "the image's configuration"));
  const auto parsed = SPC_TRY(parse_image_config(config, "the image's configuration"));
  if (parsed.diff_ids.size() != image->layers.size()) {
    return Error(ErrorKind::corrupt,
                 formatted("{}: the image's configuration describes {} layers, manifest.json {}",
                           in_quotes(name), parsed.diff_ids.size(), image->layers.size()));
  }
  std::vector<DescribedImage::Layer> layers;
  for (std::size_t i = 0; i < image->layers.size(); ++i) {
    auto part = SPC_TRY(files->find(image->layers[i]));
    if (!part)
      return Error(ErrorKind::corrupt, formatted("{}: layer {} is not in the archive",
                                                 in_quotes(name), in_quotes(image->layers[i])));
    DescribedImage::Layer layer{.digest = parsed.diff_ids[i], .media_type = {}, .part = *part};
    layer.media_type = SPC_TRY(media_type_of(*part));
    if (!layer.media_type.ends_with(".tar")) {
      layer.digest = SPC_TRY(digest_of(*part, formatted("layer {} of {}", i + 1, name), log));
    }
    layers.push_back(std::move(layer));
  }
  return DescribedImage::create(config, std::move(layers));
}

Result<std::unique_ptr<LocalImage>> open_root_archive(const TarFiles& files,
                                                      const std::string& name, Log& log) {
  const FilePart& archive = files.archive();
  const Digest digest = SPC_TRY_DURING("read " + in_quotes(name), digest_of(archive, name, log));
  const Platform host = Platform::host();
  const Json config{{"architecture", host.architecture},
                    {"os", host.os},
                    {"config", Json::object()},
                    {"rootfs", {{"type", "layers"}, {"diff_ids", Json::array({digest.str()})}}}};
  std::vector<DescribedImage::Layer> layers;
  layers.push_back(
      {.digest = digest, .media_type = "application/vnd.oci.image.layer.v1.tar", .part = archive});
  return DescribedImage::create(config.str(), std::move(layers));
}

}  // namespace spc::user_source
