#include "export/write_image.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "export/archive.hpp"
#include "image/pull/layer_process.hpp"
#include "image/store/store.hpp"
#include "reference/reference.hpp"
#include "reference/request.hpp"
#include "registry/manifest.hpp"

namespace spc {

// --- Apptainer files ---

namespace {

std::string environment_script(const std::string& settings) {
  std::string text = "#!/bin/sh\n";
  for (const auto& variable : setting_values(settings, "env")) {
    const auto end = variable.find('=');
    if (end == std::string::npos || variable.find('\n') != std::string::npos) continue;
    text +=
        formatted("export {}={}\n", variable.substr(0, end), for_shell(variable.substr(end + 1)));
  }
  return text;
}

std::string runscript_of(const std::string& settings) {
  const auto entrypoint = setting_values(settings, "entrypoint");
  const auto command = setting_values(settings, "cmd");
  std::string enter;
  for (const auto& directory : setting_values(settings, "workdir"))
    // Apptainer runs it in the caller's directory.
    enter = formatted("[ \"$PWD\" != / ] || cd {} || exit 1\n", for_shell(directory));
  const bool runs_something = !entrypoint.empty() || !command.empty();
  return formatted(
      "#!/bin/sh\n{0}if [ $# -gt 0 ]; then\n    exec{1} \"$@\"\nelse\n    exec{2}\nfi\n", enter,
      words_for_shell(entrypoint),
      runs_something ? words_for_shell(entrypoint) + words_for_shell(command)
                     : std::string(" /bin/sh"));
}

std::string labels_of(const std::string& config) {
  const auto document = parse_json_object(config, "the image's configuration");
  const Json* run = document ? document->find("config") : nullptr;
  const Json* labels = run != nullptr && run->is_object() ? run->find("Labels") : nullptr;
  return (labels != nullptr && labels->is_object() ? labels->str() : "{}") + "\n";
}

}  // namespace

std::vector<AddedFile> apptainer_files(const std::string& settings, const std::string& config) {
  return {{.path = ".singularity.d/env/10-docker2singularity.sh",
           .text = environment_script(settings),
           .mode = 0755},
          {.path = ".singularity.d/labels.json", .text = labels_of(config), .mode = 0644},
          {.path = ".singularity.d/runscript", .text = runscript_of(settings), .mode = 0755}};
}

// --- enroot files ---

namespace {

std::string rc_of(const std::string& settings) {
  std::string workdir = "/";
  for (const auto& value : setting_values(settings, "workdir")) workdir = value;
  const auto entrypoint = setting_values(settings, "entrypoint");
  const auto command = setting_values(settings, "cmd");
  const bool runs_something = !entrypoint.empty() || !command.empty();
  return formatted(
      "mkdir -p {0} 2> /dev/null\ncd {0} && unset OLDPWD || exit 1\n\n"
      "if [ -s /etc/rc.local ]; then\n    . /etc/rc.local\nfi\n\n"
      "if [ $# -gt 0 ]; then\n    exec{1} \"$@\"\nelse\n    exec{2}\nfi\n",
      for_shell(workdir), words_for_shell(entrypoint),
      runs_something ? words_for_shell(entrypoint) + words_for_shell(command)
                     : std::string(" /bin/sh"));
}

std::string environment_of(const std::string& settings) {
  std::string text;
  for (const auto& variable : setting_values(settings, "env")) {
    if (variable.find('\n') == std::string::npos) text += variable + "\n";
  }
  return text;
}

/// Returns an fstab with the image's volumes, which must exist and be writable.
std::string fstab_of(const std::string& config) {
  std::string text;
  const auto document = parse_json_object(config, "the image's configuration");
  const Json* run = document ? document->find("config") : nullptr;
  const Json* volumes = run != nullptr && run->is_object() ? run->find("Volumes") : nullptr;
  if (volumes == nullptr || !volumes->is_object()) return text;
  for (const auto& [path, unused] : volumes->members()) {
    if (path.find_first_of(" \t\n") != std::string::npos) continue;
    text += "${ENROOT_ROOTFS}" + path + " " + path + " none x-create=dir,bind,rw,nosuid,nodev\n";
  }
  return text;
}

}  // namespace

std::vector<AddedFile> enroot_files(const std::string& settings, const std::string& config) {
  return {{.path = "etc/rc", .text = rc_of(settings), .mode = 0755},
          {.path = "etc/environment", .text = environment_of(settings), .mode = 0644},
          {.path = "etc/fstab", .text = fstab_of(config), .mode = 0644}};
}

}  // namespace spc

// --- SIF file ---

// SIF version 1 as written by github.com/apptainer/sif, little-endian without padding.
// reference/first_bytes.cpp reads it.

namespace spc {

namespace {

constexpr std::size_t kHeaderBytes = 128;
constexpr std::size_t kEntryBytes = 585;
constexpr std::size_t kEntries = 48;  // as many as the format's tools create
constexpr std::uint64_t kTableAt = 4096;
constexpr std::uint64_t kMove = 1 << 20;
constexpr std::uint64_t kPage = 4096;  // alignment of data, so that it can be mounted in place
constexpr std::uint32_t kGroup = 0xf0000001;
constexpr std::int32_t kPartition = 0x4004, kGenericJson = 0x4006;
constexpr std::int32_t kSquashfs = 1, kPrimarySystem = 2;

constexpr std::uint64_t on_page(std::uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

/// Serializer of numbers and strings without padding.
class Packed {
 public:
  template <typename Number>
  Packed& add(Number number) {
    append_number(bytes_, number);
    return *this;
  }
  Packed& add(std::string text, std::size_t size) {
    text.resize(size);
    bytes_ += text;
    return *this;
  }
  [[nodiscard]] std::string filled_up_to(std::size_t size) const {
    std::string bytes = bytes_;
    bytes.resize(size);
    return bytes;
  }

 private:
  std::string bytes_;
};

std::string architecture_code() {
  constexpr std::array<std::pair<const char*, const char*>, 6> kCodes{{{"386", "01"},
                                                                       {"amd64", "02"},
                                                                       {"arm", "03"},
                                                                       {"arm64", "04"},
                                                                       {"ppc64le", "06"},
                                                                       {"s390x", "10"}}};
  const std::string ours = Platform::host().architecture;
  const auto found = std::find_if(kCodes.begin(), kCodes.end(),
                                  [&](const auto& one) { return ours == one.first; });
  return found == kCodes.end() ? "00" : found->second;
}

struct Part {
  std::int32_t type;
  std::string name;
  std::uint64_t offset, size;
};

std::string entry_of(const Part& part, std::uint32_t id, std::int64_t date) {
  Packed entry;
  entry.add(part.type).add(char{1}).add(id).add(kGroup).add(std::uint32_t{0});
  entry.add(part.offset)
      .add(part.size)
      .add(part.size)
      .add(date)
      .add(date)
      .add(std::int64_t{0})
      .add(std::int64_t{0});
  entry.add(part.name, 128);
  if (part.type == kPartition) entry.add(kSquashfs).add(kPrimarySystem).add(architecture_code(), 3);
  return entry.filled_up_to(kEntryBytes);
}

/// Returns a version 4 UUID derived from the content, so that the same content has the same
/// identifier.
std::string number_of(const Digest& content) {
  std::string number(reinterpret_cast<const char*>(content.bytes.data()), 16);
  number[6] = static_cast<char>((number[6] & 0x0f) | 0x40);
  number[8] = static_cast<char>((number[8] & 0x3f) | 0x80);
  return number;
}

std::string header_of(const Digest& content, std::uint64_t used, std::uint64_t data_bytes,
                      std::uint64_t data_at, std::int64_t date) {
  Packed header;
  header.add("#!/usr/bin/env run-singularity\n", 32)
      .add("SIF_MAGIC", 10)
      .add("01", 3)
      .add(architecture_code(), 3);
  header.add(number_of(content), 16).add(date).add(date);
  header.add(std::uint64_t{kEntries} - used)
      .add(std::uint64_t{kEntries})
      .add(kTableAt)
      .add(std::uint64_t{kEntries * kEntryBytes});
  header.add(data_at).add(data_bytes);
  return header.filled_up_to(kHeaderBytes);
}

Result<void> write_at(int file, std::uint64_t at, const std::string& bytes) {
  if (::lseek(file, static_cast<off_t>(at), SEEK_SET) < 0)
    return Error::from_errno(errno, "write the SIF file");
  return write_all(file, bytes);
}

Result<void> read_at(int file, std::uint64_t at, std::span<char> into) {
  return read_exactly(file, at, std::as_writable_bytes(into), "read the squashfs");
}

/// Returns a digest of both ends of the content: its first data, and the tables with every name,
/// size and date.
Result<Digest> ends_of(int file, std::uint64_t size) {
  std::string both(static_cast<std::size_t>(std::min<std::uint64_t>(size, kMove)), '\0');
  SPC_TRY(read_at(file, 0, both));
  Sha256 hash;
  hash.update(std::as_bytes(std::span(both)));
  SPC_TRY(read_at(file, size - both.size(), both));
  hash.update(std::as_bytes(std::span(both)));
  return hash.finish();
}

/// Moves the content up by `by` bytes (whole pages), without copying if the file system supports
/// that.
Result<void> move_up(int file, std::uint64_t size, std::uint64_t by) {
  if (::fallocate(file, FALLOC_FL_INSERT_RANGE, 0, static_cast<off_t>(by)) == 0) return {};
  std::string piece;
  for (std::uint64_t end = size; end > 0; end -= piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(end, kMove)));
    SPC_TRY(read_at(file, end - piece.size(), piece));
    SPC_TRY(write_at(file, end - piece.size() + by, piece));
  }
  return {};
}

}  // namespace

Result<void> make_sif(int file, const std::string& config) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "look at the squashfs");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::int64_t date = std::max<std::int64_t>(latest_time().value_or(0), 0);
  const std::uint64_t data_at = on_page(kTableAt + kEntries * kEntryBytes);
  const std::uint64_t root_at = data_at + on_page(config.size());
  const Digest ends = SPC_TRY(ends_of(file, size));
  std::vector<Part> parts;
  if (!config.empty()) parts.push_back({kGenericJson, "oci-config.json", data_at, config.size()});
  parts.push_back({kPartition, "squashfs.img", root_at, size});
  std::string table;
  for (const Part& part : parts)
    table += entry_of(part, static_cast<std::uint32_t>(&part - parts.data()) + 1, date);

  SPC_TRY(move_up(file, size, root_at));
  std::string front = header_of(ends, parts.size(), root_at + size - data_at, data_at, date);
  front.resize(kTableAt);
  front += table;
  front.resize(data_at);
  front += config;
  front.resize(root_at);
  return write_at(file, 0, front);
}

// --- image writer ---

namespace {

constexpr std::string_view kOciArchive = "oci-archive:";
constexpr std::string_view kOciLayer = "oci-layer:";

Json descriptor(const char* type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", type}, {"digest", digest.str()}, {"size", size}};
}

std::string blob_path(const Digest& digest) { return "blobs/sha256/" + digest.hex(); }

/// Returns the run settings of an image configuration, from records `key=value\0`.
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

/// Returns the image's configuration for a single layer with this content.
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

}  // namespace

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

namespace {

/// Writes the layer at its final offset, and then its header, which contains the digest.
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

/// Writes the members after the layer. `manifest` lacks the configuration.
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

/// Returns the OCI media type for a layer type of Docker.
std::string layer_type_of_oci(const std::string& type) {
  if (type.find("docker") == std::string::npos) return type;
  const bool gzip = type.ends_with("gzip");
  const bool zstd = type.ends_with("zstd");
  return std::string("application/vnd.oci.image.layer.v1.tar") + (gzip   ? "+gzip"
                                                                  : zstd ? "+zstd"
                                                                         : "");
}

/// Returns the layer list of the image with one more layer.
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

/// Returns the image's configuration with one more layer.
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
  // A read error explains the failure, except EPIPE: then the converter has ended, and its own
  // error is the reason.
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
