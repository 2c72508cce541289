#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/file.hpp"
#include "image/config.hpp"
#include "image/json.hpp"
#include "image/layer/layer_process.hpp"
#include "image/location.hpp"
#include "image/sha256.hpp"
#include "tool/archive.hpp"
#include "tool/command.hpp"
#include "tool/enroot_files.hpp"
#include "tool/local_image.hpp"
#include "tool/new_file.hpp"
#include "tool/user_namespace.hpp"

namespace spc {
namespace {

constexpr std::string_view kOciArchive = "oci-archive:";

/// The tree as a squashfs, by the program that converts layers.
Result<void> write_squashfs(int root, const std::vector<AddedFile>& added, int file) {
  auto converter = SPC_TRY(LayerProcess::start(file, {}, helper_program("layer-writer")));
  const auto written = write_tree(root, added, [&](const void* bytes, std::size_t size) {
    return write_all(converter.input(), std::span(static_cast<const std::byte*>(bytes), size));
  });
  // A converter that has given up knows the better reason.
  SPC_TRY(converter.finish());
  return written;
}

Json descriptor(const char* type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", type}, {"digest", digest.str()}, {"size", size}};
}

std::string blob_path(const Digest& digest) { return "blobs/sha256/" + digest.hex(); }

/// The image's configuration, for one layer with this content.
Json config_for(const std::string& text, const Digest& diff_id) {
  const auto parsed = parse_json_object(text, "the image's configuration");
  Json config = parsed ? *parsed : Json::object();
  if (!config.contains("architecture")) config["architecture"] = Platform::host().architecture;
  if (!config.contains("os")) config["os"] = "linux";
  config["rootfs"] = {{"type", "layers"}, {"diff_ids", {diff_id.str()}}};
  config.erase("history");
  return config;
}

/// An OCI image layout with one layer, in a tar archive: for skopeo, podman, docker load and others.
Result<void> write_oci_archive(int root, const std::string& image_config, const std::string& name, int file,
                               const NewFile& layer) {
  Sha256 hash;
  std::uint64_t size = 0;
  SPC_TRY(write_tree(root, {}, [&](const void* bytes, std::size_t count) {
    const auto piece = std::span(static_cast<const std::byte*>(bytes), count);
    hash.update(piece);
    size += count;
    return write_all(layer.file(), piece);
  }));
  if (::lseek(layer.file(), 0, SEEK_SET) != 0) return Error::from_errno(errno, "read the layer again");
  const Digest layer_digest = hash.finish();
  const std::string config = config_for(image_config, layer_digest).dump(-1, ' ', false, Json::error_handler_t::replace);
  const Digest config_digest = Sha256::of(config);
  constexpr char kManifest[] = "application/vnd.oci.image.manifest.v1+json";
  const Json manifest{{"schemaVersion", 2},
                      {"mediaType", kManifest},
                      {"config", descriptor("application/vnd.oci.image.config.v1+json", config_digest, config.size())},
                      {"layers", {descriptor("application/vnd.oci.image.layer.v1.tar", layer_digest, size)}}};
  const std::string manifest_text = manifest.dump();
  Json entry = descriptor(kManifest, Sha256::of(manifest_text), manifest_text.size());
  entry["annotations"] = {{"org.opencontainers.image.ref.name", name}};
  const Json index{{"schemaVersion", 2}, {"manifests", {entry}}};
  return write_members({{.path = "oci-layout", .text = R"({"imageLayoutVersion":"1.0.0"})"},
                        {.path = "index.json", .text = index.dump()},
                        {.path = blob_path(Sha256::of(manifest_text)), .text = manifest_text},
                        {.path = blob_path(config_digest), .text = config},
                        {.path = blob_path(layer_digest), .text = {}, .file = layer.file(), .size = size}},
                       [&](const void* bytes, std::size_t count) {
                         return write_all(file, std::span(static_cast<const std::byte*>(bytes), count));
                       });
}

struct Source {
  OpenedImage opened;
  std::string config;  ///< the image's configuration; empty: it has none
};

Result<Source> open_source(const Places& places, const Config& config, const std::string& name) {
  const auto location = ImageLocation::parse(name, config.default_registry);
  if (location && location->kind == ImageLocation::Kind::path) {
    return Source{SPC_TRY(open_image(places, config, {.image = name, .platform = {}, .pull = {}})), {}};
  }
  const auto store = SPC_TRY(open_store(places.store));
  const auto image = SPC_TRY(find_image(store.get(), name, config.default_registry));
  auto opened = SPC_TRY(open_stored_image(store.get(), image));
  return Source{std::move(opened), image.record->config};
}

}  // namespace

Result<int> run_export(const Arguments& arguments) {
  const std::string& name = arguments.words[0];
  std::string path = arguments.words[1];
  const bool oci = path.starts_with(kOciArchive);
  if (oci) path.erase(0, kOciArchive.size());
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  auto source = SPC_TRY(open_source(places, config, name));
  OpenedImage& opened = source.opened;
  const Replace replace = arguments.has("force") ? Replace::yes : Replace::no;
  auto file = SPC_TRY(NewFile::create(path, replace));
  SPC_TRY(make_directories(places.workspace()));
  WritableLayer shown{.wanted = false};
  if (arguments.has("changes")) shown.directory = SPC_TRY(absolute_path(arguments.value("changes")));

  SPC_TRY_DURING("mount the image", enter_user_namespace(RootMap::self));
  const auto mounted = SPC_TRY_DURING("mount the image", mount_image(std::move(opened.files), places.workspace(), shown));
  const int root = mounted.root.get();
  const std::string step = "export " + spc::quoted(name);
  if (oci) {
    const auto layer = SPC_TRY_DURING(step, NewFile::create(path + ".layer", Replace::yes));
    SPC_TRY_DURING(step, write_oci_archive(root, source.config, opened.name, file.file(), layer));
  } else {
    // What enroot made and we imported has these files already, as it wants them.
    const auto added =
        opened.settings == kSettingsInFiles ? std::vector<AddedFile>() : enroot_files(opened.settings, source.config);
    SPC_TRY_DURING(step, write_squashfs(root, added, file.file()));
  }
  SPC_TRY(file.publish());
  return 0;
}

}  // namespace spc
