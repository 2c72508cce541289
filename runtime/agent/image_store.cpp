#include "agent/image_store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "agent/node_setup.hpp"
#include "agent/privilege.hpp"
#include "protocol/image_record.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {

namespace {

Result<UniqueFd> open_directory(int parent, const char* name) {
  return own(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
             "open store directory " + quoted(name), "restart slurmd, which creates the store");
}

Result<LayerFile> open_layer(int layers, const Digest& digest) {
  auto file =
      SPC_TRY(open_object(layers, store_layout::layer_file(digest), "layer " + digest.str()));
  // The lock lasts as long as this open file description, which a loop device or server keeps as
  // well. If it is not granted, another process is evicting the layer: the file then loses its name
  // but keeps its data.
  ::flock(file.get(), LOCK_SH | LOCK_NB);
  return LayerFile{std::move(file), digest};
}

}  // namespace

Result<UniqueFd> open_object(int directory, const std::string& name, const std::string& what) {
  auto file =
      SPC_TRY(own(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK),
                  "open " + what));
  struct stat status {};
  SPC_TRY(check(::fstat(file.get(), &status), "stat " + what));
  if (!S_ISREG(status.st_mode) || status.st_uid != 0 || (status.st_mode & 0222) != 0)
    return Error(ErrorKind::corrupt, what + ": not a read-only file owned by root")
        .hint("remove it from the store; it will be pulled again");
  return file;
}

Result<ImageStore> ImageStore::open(const char* directory) {
  ImageStore store;
  store.directory_ = SPC_TRY(
      own(::open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), "open store " + quoted(directory)));
  store.images_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kImages));
  struct stat status {};
  SPC_TRY(check(::fstat(store.images_.get(), &status), "stat the store"));
  store.service_uid_ = status.st_uid;
  store.service_gid_ = status.st_gid;
  // The store is an earlier version's, and slurmd was not restarted.
  if (::faccessat(store.directory_.get(), store_layout::kRecords, F_OK, 0) != 0)
    SPC_TRY(set_up_node(status.st_uid, status.st_gid));
  store.layers_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kLayers));
  store.records_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kRecords));
  return store;
}

Result<ImageFiles> ImageStore::open_image(const Digest& manifest, Audience audience) const {
  auto record = SPC_TRY(open_object(records_.get(), manifest.hex(), "image " + manifest.str()));
  struct stat until {};
  const bool is_public =
      ::fstatat(images_.get(), manifest.hex().c_str(), &until, AT_SYMLINK_NOFOLLOW) == 0 &&
      until.st_mtim.tv_sec > ::time(nullptr);
  if (audience == Audience::everyone && !is_public)
    return Error(ErrorKind::refused, "not known to be public");
  return SPC_TRY_DURING("image " + manifest.str(), open_files(std::move(record), layers_.get()));
}

Result<ImageFiles> ImageStore::open_files(UniqueFd record, int layers) {
  ImageFiles image{.record = std::move(record)};
  ImageRecordHeader header;
  if (::pread(image.record.get(), &header, sizeof header, 0) != sizeof header ||
      std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers)
    return Error(ErrorKind::not_found, "a record of another version");
  std::vector<Digest> digests(header.in_place == 0 ? header.layer_count : 0);
  const std::size_t size = digests.size() * sizeof(Digest);
  if (::pread(image.record.get(), digests.data(), size, sizeof header) != ssize_t(size))
    return Error(ErrorKind::not_found, "truncated record");
  for (const Digest& digest : digests) image.layers.push_back(SPC_TRY(open_layer(layers, digest)));
  ::futimens(image.record.get(), nullptr);  // import uses the age to find unused images
  return image;
}

Result<UniqueFd> ImageStore::new_object() const {
  return own(::openat(layers_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444),
             "create a file in the store");
}

Result<UniqueFd> ImageStore::freeze(UniqueFd file) const {
  auto reader = SPC_TRY(
      own(::open(itself(file.get()).c_str(), O_RDONLY | O_CLOEXEC), "open a file in the store"));
  file.reset();
  // A second check: the kernel grants the lease only while no process has the file open for
  // writing.
  SPC_TRY(check(::fcntl(reader.get(), F_SETLEASE, F_RDLCK),
                "publish a file: it is still open for writing"));
  return reader;
}

Result<void> ImageStore::publish(int frozen, const std::string& path) const {
  return link_file(frozen, directory_.get(), path, EEXIST);
}

Result<void> ImageStore::put(const std::string& path, int frozen) const {
  SPC_TRY(put_file(frozen, directory_.get(), path));
  if (frozen >= 0) return {};
  return check(::unlinkat(directory_.get(), path.c_str(), 0), "remove " + path, ENOENT);
}

Result<void> ImageStore::evict(const Digest& blob) const {
  const auto layer = SPC_TRY(open_layer(layers_.get(), blob));
  if (::flock(layer.file.get(), LOCK_EX | LOCK_NB) != 0)
    return Error(ErrorKind::unavailable, "evict layer " + blob.str() + ": it is in use");
  return check(::unlinkat(layers_.get(), store_layout::layer_file(blob).c_str(), 0),
               "evict layer " + blob.str());
}

}  // namespace spc::agent
