#include "image/export/write_image.hpp"

#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "base/file.hpp"
#include "base/sha256.hpp"
#include "image/export/tar_member.hpp"
#include "image/export/zstd_sink.hpp"
#include "image/layer/worker/layer_process.hpp"
#include "image/reference/reference.hpp"
#include "image/reference/request.hpp"
#include "image/registry/json.hpp"
#include "image/registry/manifest.hpp"
#include "image/store/record.hpp"

namespace spc {
namespace {

constexpr std::string_view kOciArchive = "oci-archive:";
constexpr std::string_view kOciLayer = "oci-layer:";

Json descriptor(const char* type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", type}, {"digest", digest.str()}, {"size", size}};
}

std::string blob_path(const Digest& digest) { return "blobs/sha256/" + digest.hex(); }

/// How an image is run, from records `key=value\0`.
Json config_of(const std::string& settings) {
  Json run = Json::object();
  const auto add = [&](const char* member, const char* key) {
    if (const auto values = setting_values(settings, key); !values.empty()) run[member] = values;
  };
  add("Env", "env");
  add("Entrypoint", "entrypoint");
  add("Cmd", "cmd");
  for (const auto& workdir : setting_values(settings, "workdir")) run["WorkingDir"] = workdir;
  return {{"config", run}};
}

/// The image's configuration, for one layer with this content.
Json config_for(const std::string& text, const std::string& settings, const Digest& diff_id) {
  const auto parsed = parse_json_object(text, "the image's configuration");
  Json config = parsed ? *parsed : config_of(settings);
  if (config.find("architecture") == nullptr)
    config["architecture"] = Platform::host().architecture;
  if (config.find("os") == nullptr) config["os"] = "linux";
  config["rootfs"] = Json{{"type", "layers"}, {"diff_ids", Json::array({diff_id.str()})}};
  config.erase("history");
  return config;
}

struct WrittenLayer {
  Digest digest;  ///< of what was written
  Digest diff_id;
  std::uint64_t size = 0;
  const char* type = "application/vnd.oci.image.layer.v1.tar";
};

/// Writes a tree in order.
using TreeWriter = std::function<Result<void>(const ByteSink&)>;

/// The tree as one layer, from where `file` stands.
Result<WrittenLayer> write_layer(const TreeWriter& tree, bool compressed, int file,
                                 const WriteProgress& progress) {
  WrittenLayer layer;
  Sha256 content;
  Sha256 blob;
  std::uint64_t read = 0;
  const ByteSink to_file = [&](const void* bytes, std::size_t count) {
    const auto piece = std::span(static_cast<const std::byte*>(bytes), count);
    blob.update(piece);
    layer.size += count;
    return write_all(file, piece);
  };
  std::optional<ZstdSink> smaller;
  if (compressed) smaller.emplace(to_file);
  SPC_TRY(tree([&](const void* bytes, std::size_t count) {
    content.update(std::span(static_cast<const std::byte*>(bytes), count));
    if (progress) progress(read += count);
    return smaller ? smaller->write(bytes, count) : to_file(bytes, count);
  }));
  if (smaller) SPC_TRY(smaller->finish());
  layer.digest = blob.finish();
  layer.diff_id = content.finish();
  if (compressed) layer.type = "application/vnd.oci.image.layer.v1.tar+zstd";
  return layer;
}

/// The layer goes where it will stay, and its header, which has the digest, is written when that is
/// known.
Result<WrittenLayer> begin_archive(const TreeWriter& tree, bool compressed, int file,
                                   const WriteProgress& progress) {
  if (::lseek(file, static_cast<off_t>(kTarHeaderBytes), SEEK_SET) < 0)
    return Error::from_errno(errno, "write the archive");
  const WrittenLayer layer = SPC_TRY(write_layer(tree, compressed, file, progress));
  SPC_TRY(write_all(file, tar_padding(layer.size)));
  const std::string header = tar_header(blob_path(layer.digest), layer.size);
  if (::pwrite(file, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size())) {
    return Error::from_errno(errno, "write the archive");
  }
  return layer;
}

/// What follows the layer. `manifest` lacks the configuration.
Result<void> finish_archive(Json manifest, const std::string& config, const std::string& name,
                            int file) {
  constexpr char kManifest[] = "application/vnd.oci.image.manifest.v1+json";
  const Digest config_digest = Sha256::of(config);
  manifest["schemaVersion"] = 2;
  manifest["mediaType"] = kManifest;
  manifest["config"] =
      descriptor("application/vnd.oci.image.config.v1+json", config_digest, config.size());
  const std::string manifest_text = manifest.str();
  Json entry = descriptor(kManifest, Sha256::of(manifest_text), manifest_text.size());
  entry["annotations"] = Json{{"org.opencontainers.image.ref.name", name}};
  const Json index{{"schemaVersion", 2}, {"manifests", Json::array({entry})}};
  const std::pair<std::string, std::string> members[] = {
      {blob_path(config_digest), config},
      {blob_path(Sha256::of(manifest_text)), manifest_text},
      {"index.json", index.str()},
      {"oci-layout", R"({"imageLayoutVersion":"1.0.0"})"}};
  for (const auto& [path, text] : members) {
    SPC_TRY(write_all(file, tar_header(path, text.size()) + text + tar_padding(text.size())));
  }
  return write_all(file, std::string(2 * kTarHeaderBytes, '\0'));
}

/// Docker's name of the same bytes, in OCI's words.
std::string layer_type_of_oci(const std::string& type) {
  if (type.find("docker") == std::string::npos) return type;
  const bool gzip = type.ends_with("gzip");
  const bool zstd = type.ends_with("zstd");
  return std::string("application/vnd.oci.image.layer.v1.tar") + (gzip   ? "+gzip"
                                                                  : zstd ? "+zstd"
                                                                         : "");
}

/// The layers of the image, and one more.
Result<Json> layers_with(const std::string& manifest, const WrittenLayer& layer) {
  const auto parsed = SPC_TRY(parse_manifest(manifest, "", "manifest of the image"));
  const auto* image = std::get_if<Manifest>(&parsed);
  if (image == nullptr) return Error(ErrorKind::corrupt, "the image's manifest is a list");
  Json layers = Json::array();
  for (const Descriptor& one : image->layers)
    layers.push_back(descriptor(layer_type_of_oci(one.media_type).c_str(), one.digest, one.size));
  layers.push_back(descriptor(layer.type, layer.digest, layer.size));
  return layers;
}

/// The image's configuration with one more layer.
Result<Json> config_with(const std::string& text, const Digest& diff_id) {
  Json config = SPC_TRY(parse_json_object(text, "the image's configuration"));
  const auto known = SPC_TRY(parse_image_config(text, "the image's configuration"));
  Json diff_ids = Json::array();
  for (const Digest& one : known.diff_ids) diff_ids.push_back(one.str());
  diff_ids.push_back(diff_id.str());
  config["rootfs"] = Json{{"type", "layers"}, {"diff_ids", std::move(diff_ids)}};
  if (const Json* history = config.find("history"); history != nullptr && history->is_array()) {
    Json longer = *history;
    longer.push_back(
        Json{{"created_by", "spank-container"}, {"comment", "changes of a container"}});
    config["history"] = std::move(longer);
  }
  return config;
}

}  // namespace

ImageTarget parse_image_target(const std::string& text) {
  if (text.starts_with(kOciArchive))
    return {.path = text.substr(kOciArchive.size()), .form = ImageForm::oci_archive};
  if (text.starts_with(kOciLayer))
    return {.path = text.substr(kOciLayer.size()), .form = ImageForm::oci_layer};
  if (text.ends_with(".tar")) return {.path = text, .form = ImageForm::oci_archive};
  return {.path = text, .form = text.ends_with(".sif") ? ImageForm::sif : ImageForm::squashfs};
}

Result<void> write_squashfs(int root, const std::vector<AddedFile>& added, int file,
                            unsigned workers, const std::string& layer_writer,
                            const WriteProgress& progress) {
  const LayerLimits limits{.workers = workers};
  auto converter = SPC_TRY(LayerProcess::start(file, limits, layer_writer));
  std::uint64_t total = 0;
  const auto written = write_tree(root, added, [&](const void* bytes, std::size_t size) {
    if (progress) progress(total += size);
    return write_all(converter.input(), std::span(static_cast<const std::byte*>(bytes), size));
  });
  // What could not be read is the better reason, unless the converter has given up: then it knows.
  if (!written && written.error().sys_errno() != EPIPE) return written;
  SPC_TRY(converter.finish());
  return written;
}

Result<void> write_oci_archive(int root, const OciImage& image, int file,
                               const WriteProgress& progress) {
  const auto tree = [&](const ByteSink& sink) { return write_tree(root, {}, sink); };
  const WrittenLayer layer = SPC_TRY(begin_archive(tree, image.compressed, file, progress));
  const std::string config = config_for(image.config, image.settings, layer.diff_id).str();
  return finish_archive(
      Json{{"layers", Json::array({descriptor(layer.type, layer.digest, layer.size)})}}, config,
      image.name, file);
}

Result<void> write_oci_layer(int root, const KnownTree& known, const ChangedImage& image, int file,
                             const WriteProgress& progress) {
  const auto reference = SPC_TRY(ImageReference::parse(image.name));
  const auto tree = [&](const ByteSink& sink) { return write_changes(root, known, sink); };
  const WrittenLayer layer = SPC_TRY(begin_archive(tree, true, file, progress));
  const std::string digest = Sha256::of(image.manifest).str();
  Json layers = SPC_TRY(layers_with(image.manifest, layer));
  Json manifest{{"layers", std::move(layers)}};
  manifest["annotations"] =
      Json{{"org.opencontainers.image.base.name", reference.canonical()},
           {"org.opencontainers.image.base.digest", digest},
           {kLayersOf, reference.registry + "/" + reference.repository + "@" + digest}};
  return finish_archive(std::move(manifest),
                        SPC_TRY(config_with(image.config, layer.diff_id)).str(), "saved", file);
}

}  // namespace spc
