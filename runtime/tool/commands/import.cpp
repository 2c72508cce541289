#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json/json.hpp"
#include "base/sha256.hpp"
#include "image/reference/location.hpp"
#include "image/reference/reference.hpp"
#include "image/store/store.hpp"
#include "launch/host/local_image.hpp"
#include "protocol/store_layout.hpp"
#include "tool/command.hpp"
#include "tool/images/local_image.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {
namespace {

/// Copies the file into the store, where its digest is its name.
Result<Digest> copy_into_store(int store, int file) {
  const UniqueFd layers(::openat(store, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd copy(::openat(layers.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!copy) return Error::from_errno(errno, "create a file in the user's image store");
  Sha256 hash;
  std::vector<std::byte> buffer(1 << 20);
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(file, buffer.data(), buffer.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the file");
    if (got == 0) break;
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(got));
    hash.update(piece);
    SPC_TRY_DURING("write into the user's image store", write_all(copy.get(), piece));
    at += got;
  }
  const Digest digest = hash.finish();
  if (::fsync(copy.get()) != 0) return Error::from_errno(errno, "write into the user's image store");
  const std::string itself = "/proc/self/fd/" + std::to_string(copy.get());
  const std::string name = store_layout::layer_file(digest);
  if (::linkat(AT_FDCWD, itself.c_str(), layers.get(), name.c_str(), AT_SYMLINK_FOLLOW) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, "publish a file in the user's image store");
  }
  return digest;
}

/// Its settings lie in the file itself, where enroot keeps them; they are read when it is run.
ImageRecord record_of(const Digest& layer, const std::string& name) {
  ImageRecord record;
  record.layer_format = kLayerFormat;
  record.layers = {layer};
  record.settings = kSettingsInFiles;
  record.config = Json{{"architecture", Platform::host().architecture}, {"os", "linux"}}.str();
  record.manifest = Json{{"schemaVersion", 2}, {"squashfs", layer.str()}, {"name", name}}.str();
  return record;
}

Result<Digest> import_squashfs(const ImageStore& store, int directory, int file, const std::string& name) {
  const Digest layer = SPC_TRY(copy_into_store(directory, file));
  const ImageRecord record = record_of(layer, name);
  const Digest digest = Sha256::of(record.manifest);
  ImageOrigins origins;
  origins.add({.registry = "",
               .repository = "",
               .user = ::geteuid(),
               .name = name,
               .platform = Platform::host().str(),
               .public_until = 0});
  SPC_TRY(store.write_origins(digest, origins));
  SPC_TRY(store.write_image(digest, record));
  return digest;
}

}  // namespace

Result<int> run_import(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  if (!places.own_store) {
    return Error(ErrorKind::refused, "import a file: the node's store takes images from registries only")
        .hint("use the file with --container-image, or import it as a non-root user");
  }
  const auto config = SPC_TRY(read_config(places.config));
  std::string source = arguments.words[0];
  const auto reference = SPC_TRY_DURING("new name", ImageReference::parse(arguments.words[1], config.default_registry));
  const auto ref_file = reference.ref_file_name();
  if (!ref_file || reference.digest) return Error(ErrorKind::invalid, "new name: must be NAME[:TAG]");
  const auto directory = SPC_TRY(make_own_store(places));
  const auto store = SPC_TRY(ImageStore::open(directory.get()));

  // A file may be named as it is; where an image could be meant, too, it is the file here.
  if (::access(source.c_str(), F_OK) == 0 && source[0] != '/' && source[0] != '.') source = "./" + source;
  auto local = source[0] == '/' || source[0] == '.' || source[0] == '~' ? open_local_image(source, places.home)
                                                                        : Result<LocalImage>(LocalImage{});
  if (!local) return std::move(local).error().during("import " + in_quotes(source));
  Digest digest;
  if (local->file && local->kind == LocalImage::Kind::squashfs && local->offset == 0) {
    const UniqueFd& squashfs = local->file;
    digest = SPC_TRY_DURING("import " + in_quotes(source),
                            import_squashfs(store, directory.get(), squashfs.get(), reference.canonical()));
  } else {
    const auto location = SPC_TRY(ImageLocation::parse(source, config.default_registry));
    struct stat status {};
    if (location.kind == ImageLocation::Kind::registry) {
      return Error(ErrorKind::invalid,
                   formatted("import {}: is the name of an image in a registry", in_quotes(source)))
          .hint("use scontainer pull");
    }
    if (location.kind == ImageLocation::Kind::path && ::stat(location.path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
      return Error(ErrorKind::invalid, formatted("import {}: is a directory", in_quotes(source)))
          .hint("scontainer run takes directories; for an image layout use oci:DIR");
    }
    digest = SPC_TRY(obtain(places, config, {.image = source, .platform = {}, .pull = {}, .quiet = arguments.has("quiet")}))
                 .image.digest;
  }
  SPC_TRY(store.write_name({.name = *ref_file, .manifest = digest, .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  std::puts(digest.str().c_str());
  return 0;
}

}  // namespace spc::tool
