#include "registry/manifest.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string>

#include "base/format.hpp"
#include "base/text.hpp"
#include "protocol/image_record.hpp"

namespace spc {

// --- JSON objects ---

Result<Json> parse_json_object(std::string_view text, std::string_view what) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '<') {
    return Error(ErrorKind::corrupt, std::string(what) + ": is an HTML page, not JSON")
        .hint("check https_proxy: a proxy or a login page answers");
  }
  if (first != std::string_view::npos && text[first] != '{') {
    return Error(ErrorKind::corrupt, std::string(what) + ": is not a JSON object");
  }
  auto parsed = Json::parse(text);
  if (!parsed)
    return Error(ErrorKind::corrupt, formatted("{}: {}", what, parsed.error().message()));
  return parsed;
}

// --- manifest ---

namespace {

constexpr std::string_view kOciManifest = "application/vnd.oci.image.manifest.v1+json";
constexpr std::string_view kOciIndex = "application/vnd.oci.image.index.v1+json";
constexpr std::string_view kDockerManifest = "application/vnd.docker.distribution.manifest.v2+json";
constexpr std::string_view kDockerList =
    "application/vnd.docker.distribution.manifest.list.v2+json";
constexpr std::string_view kDockerSchema1 = "application/vnd.docker.distribution.manifest.v1";

constexpr std::array<std::string_view, 8> kLayerTypes = {
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    "application/vnd.docker.image.rootfs.diff.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar+zstd"};
constexpr std::array<std::string_view, 2> kConfigTypes = {
    "application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"};

constexpr std::uint64_t kMaxBlob = std::uint64_t{1} << 50;
constexpr std::size_t kMaxIndexEntries = 2000;

bool is_manifest_type(std::string_view type) {
  return type == kOciManifest || type == kDockerManifest;
}
bool is_index_type(std::string_view type) { return type == kOciIndex || type == kDockerList; }

Error corrupt(const std::string& why) { return Error(ErrorKind::corrupt, why); }

Result<Descriptor> parse_descriptor(const Json& object) {
  if (!object.is_object()) return corrupt("a descriptor is not an object");
  Descriptor descriptor;
  descriptor.media_type = SPC_TRY(object.text("mediaType")).value_or("");
  const auto digest = SPC_TRY(object.text("digest"));
  if (!digest) return corrupt("a descriptor has no digest");
  descriptor.digest = SPC_TRY(Digest::parse(*digest));
  const auto size = SPC_TRY(object.number("size"));
  if (!size) return corrupt(formatted("descriptor of {} has no size", descriptor.digest.str()));
  if (*size > kMaxBlob)
    return corrupt(
        formatted("descriptor of {}: size {} is invalid", descriptor.digest.str(), *size));
  descriptor.size = *size;
  return descriptor;
}

Result<void> check_layer_type(const std::string& type) {
  if (std::find(kLayerTypes.begin(), kLayerTypes.end(), type) != kLayerTypes.end()) return {};
  if (type.find("foreign") != std::string::npos ||
      type.find("nondistributable") != std::string::npos) {
    return Error(ErrorKind::invalid, "has a non-distributable (foreign) layer")
        .hint("choose an image for Linux");
  }
  if (type.find("encrypted") != std::string::npos) {
    return Error(ErrorKind::invalid, "has an encrypted layer; these are not supported");
  }
  return Error(ErrorKind::invalid, "has a layer of unknown type " + in_quotes(type))
      .hint("for an artifact of one file use oras://NAME");
}

Result<Manifest> manifest_of(const Json& document) {
  Manifest manifest;
  const Json* config = document.find("config");
  if (config == nullptr) return corrupt("has no config");
  manifest.config = SPC_TRY(parse_descriptor(*config));
  const std::string& type = manifest.config.media_type;
  if (std::find(kConfigTypes.begin(), kConfigTypes.end(), type) == kConfigTypes.end()) {
    return Error(
        ErrorKind::invalid,
        formatted("is not a container image but an artifact (config of type {})", in_quotes(type)));
  }
  const auto* layers = SPC_TRY(document.list("layers"));
  if (layers->size() > ImageRecordHeader::kMaxLayers) {
    return Error(ErrorKind::invalid, formatted("has {} layers, more than {}", layers->size(),
                                               ImageRecordHeader::kMaxLayers));
  }
  for (const Json& layer : *layers) {
    const Descriptor descriptor = SPC_TRY(parse_descriptor(layer));
    SPC_TRY(check_layer_type(descriptor.media_type));
    manifest.layers.push_back(descriptor);
  }
  if (const Json* notes = document.find("annotations"); notes != nullptr && notes->is_object()) {
    if (const auto below = notes->text(kLayersOf)) manifest.layers_of = below->value_or("");
  }
  return manifest;
}

/// Returns whether the entry describes another one and is not an image, as BuildKit's provenance.
bool is_attestation(const Json& entry) {
  const Json* notes = entry.find("annotations");
  return notes != nullptr && notes->is_object() &&
         notes->find("vnd.docker.reference.type") != nullptr;
}

Result<Index> index_of(const Json& document) {
  Index index;
  const auto* entries = SPC_TRY(document.list("manifests"));
  if (entries->size() > kMaxIndexEntries)
    return corrupt(formatted("lists more than {} images", kMaxIndexEntries));
  for (const Json& item : *entries) {
    Index::Entry entry;
    entry.descriptor = SPC_TRY(parse_descriptor(item));
    entry.is_index = is_index_type(entry.descriptor.media_type);
    // Skip other entries, such as signatures and attestations.
    if (!entry.is_index && !is_manifest_type(entry.descriptor.media_type)) continue;
    if (is_attestation(item)) continue;
    if (const Json* platform = item.find("platform")) {
      if (!platform->is_object()) return corrupt("\"platform\" is not an object");
      entry.platform.os = SPC_TRY(platform->text("os")).value_or("");
      entry.platform.architecture = SPC_TRY(platform->text("architecture")).value_or("");
      entry.platform.variant = SPC_TRY(platform->text("variant")).value_or("");
      entry.platform = entry.platform.normalized();
      entry.has_platform = !entry.platform.os.empty() || !entry.platform.architecture.empty();
    }
    index.entries.push_back(std::move(entry));
  }
  return index;
}

/// Returns the variant as a number. A machine runs images for lower variants: `v2` on amd64/v3,
/// arm/v6 on arm/v7. An empty variant means the baseline of the architecture, v7 on 32-bit arm.
/// Returns an empty optional if the variant is not a number.
std::optional<int> level_of(const Platform& platform) {
  if (platform.variant.empty())
    return platform.architecture == "arm64" ? 80 : platform.architecture == "arm" ? 70 : 10;
  int level = 0;
  int part = 0;  // the 2 of v9.2
  const char* const end = platform.variant.data() + platform.variant.size();
  auto read = std::from_chars(platform.variant.data() + 1, end, level);
  if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '.')
    read = std::from_chars(read.ptr + 1, end, part);
  const bool is_number = platform.variant[0] == 'v' && read.ec == std::errc{} && read.ptr == end &&
                         level < 100 && part < 10;
  return is_number ? std::optional(10 * level + part) : std::nullopt;
}

/// Rates how well an image's platform fits: 0 is no match, higher is better.
int match(const Platform& have, const Platform& want) {
  constexpr int kSame = 10000;
  if ((!have.os.empty() && have.os != want.os) || have.architecture != want.architecture) return 0;
  if (have.variant == want.variant) return kSame;
  const auto level = level_of(have);
  const auto wanted = level_of(want);
  if (!level || !wanted || *level > *wanted) return 0;
  return std::max(1, kSame - 1 - (*wanted - *level));
}

/// Returns whether the entry is for no platform, as attestations are.
bool is_unknown(const Index::Entry& entry) {
  return entry.platform.os == "unknown" || entry.platform.architecture == "unknown";
}

Result<std::vector<std::string>> texts_member(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto* items = SPC_TRY(object.list(key));
  for (const Json& item : *items) {
    if (!item.is_text())
      return corrupt(formatted("\"{}\" has an element that is not a string", key));
    const auto& text = item.as_text();
    if (text.find('\0') != std::string::npos)
      return corrupt(formatted("\"{}\" has a NUL character in it", key));
    texts.push_back(text);
  }
  return texts;
}

/// Returns the keys of an object that represents a set. They are only shown, so malformed ones are
/// skipped.
std::vector<std::string> names_member(const Json& object, const char* key) {
  std::vector<std::string> names;
  const Json* set = object.find(key);
  if (set == nullptr || !set->is_object()) return names;
  for (const auto& [name, unused] : set->members()) {
    if (name.find('\0') == std::string::npos) names.push_back(name);
  }
  return names;
}

Result<ImageConfig> config_of(const Json& document) {
  ImageConfig config;
  config.platform.os = SPC_TRY(document.text("os")).value_or("");
  config.platform.architecture = SPC_TRY(document.text("architecture")).value_or("");
  config.platform.variant = SPC_TRY(document.text("variant")).value_or("");
  config.platform = config.platform.normalized();

  const Json* rootfs = document.find("rootfs");
  if (rootfs == nullptr || !rootfs->is_object()) {
    return Error(ErrorKind::invalid, "has no rootfs: this is not a container image");
  }
  const auto diff_ids = SPC_TRY(texts_member(*rootfs, "diff_ids"));
  for (const auto& text : diff_ids)
    config.diff_ids.push_back(SPC_TRY_DURING("diff_ids", Digest::parse(text)));

  if (const Json* run = document.find("config")) {
    if (!run->is_object()) return corrupt("\"config\" is not an object");
    const auto env = SPC_TRY(texts_member(*run, "Env"));
    for (const auto& entry : env) {
      const std::size_t equals = entry.find('=');
      // entries without a value are skipped
      if (equals != std::string::npos && equals > 0) config.env.push_back(entry);
    }
    config.entrypoint = SPC_TRY(texts_member(*run, "Entrypoint"));
    config.cmd = SPC_TRY(texts_member(*run, "Cmd"));
    config.workdir = SPC_TRY(run->text("WorkingDir")).value_or("");
    config.user = SPC_TRY(run->text("User")).value_or("");
    config.volumes = names_member(*run, "Volumes");
    config.ports = names_member(*run, "ExposedPorts");
  }
  return config;
}

Result<std::variant<Manifest, Index>> document_of(const Json& document,
                                                  std::string_view content_type) {
  content_type = content_type.substr(0, content_type.find(';'));
  const std::string own_type = SPC_TRY(document.text("mediaType")).value_or("");
  const auto schema = SPC_TRY(document.number("schemaVersion"));
  const bool has_layers = document.find("layers") != nullptr || document.find("config") != nullptr;
  const bool has_manifests = document.find("manifests") != nullptr;

  if (schema == 1U || document.find("fsLayers") != nullptr ||
      own_type.starts_with(kDockerSchema1)) {
    return Error(ErrorKind::invalid, "has an unsupported manifest format (schema 1)")
        .hint("push the image again with a recent tool");
  }
  if (schema && schema != 2U) return corrupt(formatted("schemaVersion {} is unknown", *schema));
  if (has_layers && has_manifests) return corrupt("is both a manifest and an index");

  const bool header_known = is_manifest_type(content_type) || is_index_type(content_type);
  if (!own_type.empty() && header_known && is_index_type(own_type) != is_index_type(content_type)) {
    return corrupt(formatted("is served as {} but has media type {}", in_quotes(content_type),
                             in_quotes(own_type)));
  }
  const std::string_view type = !own_type.empty() ? std::string_view(own_type)
                                : header_known    ? content_type
                                : has_manifests   ? kOciIndex
                                                  : kOciManifest;
  if (is_index_type(type)) {
    if (has_layers) return corrupt("has the media type of an index but contains layers");
    return std::variant<Manifest, Index>(SPC_TRY(index_of(document)));
  }
  if (!is_manifest_type(type)) {
    return Error(ErrorKind::invalid,
                 formatted("is of type {}, not a container image", in_quotes(type)));
  }
  if (has_manifests) return corrupt("has the media type of a manifest but lists manifests");
  return std::variant<Manifest, Index>(SPC_TRY(manifest_of(document)));
}

}  // namespace

const char* const kManifestAccept =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json";

Result<std::variant<Manifest, Index>> parse_manifest(std::string_view bytes,
                                                     std::string_view content_type,
                                                     std::string_view what) {
  const Json document = SPC_TRY(parse_json_object(bytes, what));
  return SPC_TRY_DURING(what, document_of(document, content_type));
}

Result<Index::Entry> choose_platform(const Index& index, const Platform& platform,
                                     std::string_view what) {
  const Index::Entry* best = nullptr;
  int best_match = 0;
  std::set<std::string> others;
  std::size_t images = 0;
  for (const Index::Entry& entry : index.entries) {
    if (!is_unknown(entry)) ++images;
    if (!entry.has_platform) continue;
    if (const int found = match(entry.platform, platform); found > best_match) {
      best = &entry;
      best_match = found;
    }
    if (!is_unknown(entry)) others.insert(entry.platform.str());
  }
  if (best != nullptr) return *best;
  // A nested index has no platform of its own, nor has the only entry of an incomplete index.
  for (const Index::Entry& entry : index.entries) {
    if (!entry.has_platform && (entry.is_index || images == 1)) return entry;
  }
  if (index.entries.empty())
    return Error(ErrorKind::not_found, std::string(what) + ": the index lists no image");
  std::string list;
  std::size_t shown = 0;
  for (const std::string& other : others) {
    if (++shown > 12) break;
    list += (list.empty() ? "" : ", ") + printable(other).substr(0, 40);
  }
  if (list.empty()) list = "nothing that names its platform";
  // ErrorKind::invalid, as for an image without an index: the architecture of a login node may
  // differ from that of the compute nodes.
  return Error(ErrorKind::invalid,
               formatted("{}: has no image for {}, only for {}", what, platform.str(), list))
      .hint("choose a tag built for " + platform.str());
}

Result<ImageConfig> parse_image_config(std::string_view bytes, std::string_view what) {
  const Json document = SPC_TRY(parse_json_object(bytes, what));
  return SPC_TRY_DURING(what, config_of(document));
}

std::string settings_of(const ImageConfig& config) {
  std::string out;
  const auto add = [&](std::string_view key, std::string_view value) {
    add_record(out, key, value);
  };
  for (const auto& entry : config.env) add("env", entry);
  if (!config.workdir.empty()) add("workdir", config.workdir);
  for (const auto& argument : config.entrypoint) add("entrypoint", argument);
  for (const auto& argument : config.cmd) add("cmd", argument);
  if (!config.user.empty()) add("user", config.user);
  for (const auto& volume : config.volumes) add("volume", volume);
  for (const auto& port : config.ports) add("port", port);
  return out;
}

}  // namespace spc
