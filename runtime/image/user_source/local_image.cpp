#include "image/user_source/local_image.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "base/sha256.hpp"
#include "image/user_source/directory_files.hpp"
#include "image/user_source/docker_save.hpp"
#include "image/user_source/export.hpp"
#include "image/user_source/oci_layout.hpp"
#include "image/user_source/tar_files.hpp"
#include "image/user_source/unpack.hpp"

namespace spc::user_source {
namespace {

constexpr char kManifestType[] = "application/vnd.oci.image.manifest.v1+json";
constexpr char kConfigType[] = "application/vnd.oci.image.config.v1+json";

Json descriptor(const std::string& media_type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", media_type}, {"digest", digest.str()}, {"size", size}};
}

/// The job's HOME decides, as in a shell.
std::string with_home(const std::string& path) {
  if (!path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    const passwd* entry = ::getpwuid(::geteuid());
    home = entry != nullptr ? entry->pw_dir : "";
  }
  return home + path.substr(1);
}

/// What the archive holds decides, not what it is called: older and newer docker write different
/// things.
Result<std::unique_ptr<LocalImage>> open_archive(FilePart file, const std::string& reference,
                                                 const std::string& name, Log& log) {
  file = SPC_TRY(unpacked(std::move(file), name, log));
  auto files = SPC_TRY(TarFiles::index(std::move(file), name));
  if (files->has("oci-layout") || files->has("index.json"))
    return open_oci_layout(std::move(files), reference, name);
  if (files->has("manifest.json")) return open_docker_save(std::move(files), reference, name, log);
  for (const char* directory : {"usr", "bin", "etc", "lib"}) {
    if (!files->has(directory)) continue;
    if (reference.empty()) return open_root_archive(*files, name, log);
    return Error(ErrorKind::invalid, formatted("{} is an unnamed root file system: {} is not in it",
                                               in_quotes(name), in_quotes(reference)));
  }
  return Error(ErrorKind::invalid,
               in_quotes(name) +
                   " is not an image: it has no index.json or manifest.json and is not a root "
                   "file system");
}

}  // namespace

Result<std::unique_ptr<LocalImage>> LocalImage::open(const ImageLocation& location, Log& log) {
  using Kind = ImageLocation::Kind;
  const std::string path = with_home(location.path);
  switch (location.kind) {
    case Kind::oci_layout: {
      auto files = SPC_TRY(DirectoryFiles::open(path));
      return open_oci_layout(std::move(files), location.reference, path);
    }
    case Kind::oci_archive:
    case Kind::docker_archive:
    case Kind::path: {
      auto file = SPC_TRY(open_ordinary_file(path));
      return open_archive(std::move(file), location.reference, path, log);
    }
    case Kind::podman: {
      auto file = SPC_TRY(export_from_podman(location.reference, log));
      return open_archive(std::move(file), "", location.canonical(), log);
    }
    case Kind::docker_daemon: {
      auto file = SPC_TRY(export_from_docker(location.reference, log));
      return open_archive(std::move(file), "", location.canonical(), log);
    }
    case Kind::registry:
    case Kind::remote_file: break;
  }
  return Error(ErrorKind::invalid, formatted("image {}: is not an image of the user's own",
                                             in_quotes(location.canonical())))
      .hint("fetch a file first: scontainer pull --output=FILE URL");
}

Result<std::unique_ptr<LocalImage>> DescribedImage::create(const std::string& config,
                                                           std::vector<Layer> layers) {
  auto image = std::make_unique<DescribedImage>();
  const Digest config_digest = Sha256::of(config);
  image->blobs_[config_digest] = SPC_TRY(file_with(config, kConfigType));
  Json listed = Json::array();
  for (Layer& layer : layers) {
    listed.push_back(descriptor(layer.media_type, layer.digest, layer.part.size));
    image->blobs_[layer.digest] = std::move(layer.part);
  }
  const Json manifest{{"schemaVersion", 2},
                      {"mediaType", kManifestType},
                      {"config", descriptor(kConfigType, config_digest, config.size())},
                      {"layers", std::move(listed)}};
  image->document_ = SPC_TRY(file_with(manifest.str(), kManifestType));
  return std::unique_ptr<LocalImage>(std::move(image));
}

Result<std::optional<FilePart>> DescribedImage::blob(const Digest& digest) const {
  const auto found = blobs_.find(digest);
  return found == blobs_.end() ? std::optional<FilePart>() : std::optional(found->second);
}

}  // namespace spc::user_source
