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
#include "image/reference/request.hpp"
#include "image/registry/json.hpp"
#include "image/store/record.hpp"

namespace spc {
namespace {

constexpr std::string_view kOciArchive = "oci-archive:";

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
  if (config.find("architecture") == nullptr) config["architecture"] = Platform::host().architecture;
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

/// The tree as one layer, from where `file` stands.
Result<WrittenLayer> write_layer(int root, bool compressed, int file, const WriteProgress& progress) {
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
  SPC_TRY(write_tree(root, {}, [&](const void* bytes, std::size_t count) {
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

}  // namespace

ImageTarget parse_image_target(const std::string& text) {
  if (text.starts_with(kOciArchive)) return {.path = text.substr(kOciArchive.size()), .oci = true};
  return {.path = text, .oci = text.ends_with(".tar")};
}

Result<void> write_squashfs(int root, const std::vector<AddedFile>& added, int file, unsigned workers,
                            const std::string& layer_writer, const WriteProgress& progress) {
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

Result<void> write_oci_archive(int root, const OciImage& image, int file, const WriteProgress& progress) {
  // The layer goes where it will stay, and its header, which has the digest, is written when that is known.
  if (::lseek(file, static_cast<off_t>(kTarHeaderBytes), SEEK_SET) < 0) return Error::from_errno(errno, "write the archive");
  const WrittenLayer layer = SPC_TRY(write_layer(root, image.compressed, file, progress));
  SPC_TRY(write_all(file, tar_padding(layer.size)));
  const std::string header = tar_header(blob_path(layer.digest), layer.size);
  if (::pwrite(file, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size())) {
    return Error::from_errno(errno, "write the archive");
  }

  const std::string config = config_for(image.config, image.settings, layer.diff_id).str();
  const Digest config_digest = Sha256::of(config);
  constexpr char kManifest[] = "application/vnd.oci.image.manifest.v1+json";
  const Json manifest{{"schemaVersion", 2},
                      {"mediaType", kManifest},
                      {"config", descriptor("application/vnd.oci.image.config.v1+json", config_digest, config.size())},
                      {"layers", Json::array({descriptor(layer.type, layer.digest, layer.size)})}};
  const std::string manifest_text = manifest.str();
  Json entry = descriptor(kManifest, Sha256::of(manifest_text), manifest_text.size());
  entry["annotations"] = Json{{"org.opencontainers.image.ref.name", image.name}};
  const Json index{{"schemaVersion", 2}, {"manifests", Json::array({entry})}};
  const std::pair<std::string, std::string> members[] = {{blob_path(config_digest), config},
                                                         {blob_path(Sha256::of(manifest_text)), manifest_text},
                                                         {"index.json", index.str()},
                                                         {"oci-layout", R"({"imageLayoutVersion":"1.0.0"})"}};
  for (const auto& [path, text] : members) {
    SPC_TRY(write_all(file, tar_header(path, text.size()) + text + tar_padding(text.size())));
  }
  return write_all(file, std::string(2 * kTarHeaderBytes, '\0'));
}

}  // namespace spc
