#include "tool/images/file_import.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/file.hpp"
#include "base/json/json.hpp"
#include "base/sha256.hpp"
#include "image/reference/sif.hpp"
#include "image/reference/squashfs_super.hpp"
#include "image/store/store.hpp"
#include "protocol/store_layout.hpp"
#include "tool/images/local_image.hpp"

namespace spc::tool {
namespace {

using Part = SifPartition;

Result<std::string> read_bytes(int file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  const ssize_t got = ::pread(file, bytes.data(), size, static_cast<off_t>(offset));
  if (got < 0) return Error::from_errno(errno, "read the file");
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

/// Where the squashfs is.
Result<Part> squashfs_in(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "look at the file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::string head =
      SPC_TRY(read_bytes(file, 0, std::max(SifTable::kHeaderBytes, SquashfsSuper::kBytes)));
  Part part{.offset = 0, .size = size};
  if (looks_like_sif(std::as_bytes(std::span(head)))) {
    const auto table = SPC_TRY(parse_sif_header(std::as_bytes(std::span(head)), size));
    const std::string contents = SPC_TRY(read_bytes(file, table.offset, table.size));
    part = SPC_TRY(
        find_sif_root(std::as_bytes(std::span(contents)), size, Platform::host().architecture));
  } else if (!looks_like_squashfs(std::as_bytes(std::span(head)))) {
    return Error(ErrorKind::invalid, "it is neither a SIF nor a squashfs file");
  }
  const std::string super = SPC_TRY(read_bytes(file, part.offset, SquashfsSuper::kBytes));
  SPC_TRY(parse_squashfs_super(std::as_bytes(std::span(super)), part.size));
  return part;
}

/// Copies the squashfs into the store, where its digest is its name.
Result<Digest> copy_into_store(int store, int file, const Part& part) {
  const UniqueFd layers(::openat(store, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd copy(::openat(layers.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!copy) return Error::from_errno(errno, "create a file in the user's image store");
  Sha256 hash;
  std::vector<std::byte> buffer(1 << 20);
  for (std::uint64_t at = 0; at < part.size;) {
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), part.size - at));
    const ssize_t got = ::pread(file, buffer.data(), wanted, static_cast<off_t>(part.offset + at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the file");
    if (got == 0) return Error(ErrorKind::corrupt, "the file was truncated");
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(got));
    hash.update(piece);
    SPC_TRY_DURING("write into the user's image store", write_all(copy.get(), piece));
    at += static_cast<std::uint64_t>(got);
  }
  const Digest digest = hash.finish();
  if (::fsync(copy.get()) != 0)
    return Error::from_errno(errno, "write into the user's image store");
  const std::string itself = "/proc/self/fd/" + std::to_string(copy.get());
  const std::string name = store_layout::layer_file(digest);
  if (::linkat(AT_FDCWD, itself.c_str(), layers.get(), name.c_str(), AT_SYMLINK_FOLLOW) != 0 &&
      errno != EEXIST) {
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

}  // namespace

Result<void> check_image_file(int file) {
  SPC_TRY(squashfs_in(file));
  return {};
}

Result<Digest> import_file(int directory, int file, const std::string& name) {
  const Part part = SPC_TRY(squashfs_in(file));
  const auto store = SPC_TRY(ImageStore::open(directory));
  const Digest layer = SPC_TRY(copy_into_store(directory, file, part));
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

}  // namespace spc::tool
