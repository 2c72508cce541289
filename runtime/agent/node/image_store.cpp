#include "agent/node/image_store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "agent/node/setup.hpp"
#include "agent/node/system_call.hpp"
#include "protocol/image_record.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {
namespace {

Result<UniqueFd> open_directory(int parent, const char* name) {
  return own(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), "open store directory " + quoted(name));
}

Result<LayerFile> open_layer(int layers, const Digest& digest) {
  auto file = SPC_TRY(open_object(layers, store_layout::layer_file(digest), "layer " + digest.str()));
  // The lock lasts as long as this open file description, which a loop device or server keeps too. Where it is not granted
  // somebody is just evicting the layer: then the file loses its name but not its bytes.
  ::flock(file.get(), LOCK_SH | LOCK_NB);
  return LayerFile{std::move(file), digest};
}

/// A lease for reading is granted only while nobody has the file open for writing (fcntl(2), F_SETLEASE): from then
/// on its bytes cannot change, as its mode is 0444. The writers have exited or are just closing, hence the retries.
Result<void> prove_no_writer(int file) {
  for (int attempt = 0; ::fcntl(file, F_SETLEASE, F_RDLCK) != 0; ++attempt) {
    if (errno != EAGAIN || attempt == 200) return Error::from_errno(errno, "publish a file: it is still open for writing");
    ::usleep(1000);
  }
  return check(::fcntl(file, F_SETLEASE, F_UNLCK), "publish a file");
}

}  // namespace

Result<UniqueFd> open_object(int directory, const std::string& name, const std::string& what) {
  auto file = SPC_TRY(own(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK), "open " + what));
  struct stat status {};
  SPC_TRY(check(::fstat(file.get(), &status), "stat " + what));
  if (!S_ISREG(status.st_mode) || status.st_uid != 0 || (status.st_mode & 0222) != 0)
    return Error(ErrorKind::corrupt, what + ": not a read-only file owned by root");
  return file;
}

Result<ImageStore> ImageStore::open(const char* directory) {
  ImageStore store;
  store.directory_ = SPC_TRY(own(::open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), "open store " + quoted(directory)));
  store.images_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kImages));
  struct stat status {};
  SPC_TRY(check(::fstat(store.images_.get(), &status), "stat the store"));
  store.service_uid_ = status.st_uid;
  store.service_gid_ = status.st_gid;
  // An earlier version's, and slurmd was not restarted.
  if (::faccessat(store.directory_.get(), store_layout::kRecords, F_OK, 0) != 0) SPC_TRY(set_up_node(status.st_uid, status.st_gid));
  store.layers_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kLayers));
  store.records_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kRecords));
  return store;
}

Result<ImageFiles> ImageStore::open_image(const Digest& manifest, Audience audience) const {
  auto record = SPC_TRY(open_object(records_.get(), manifest.hex(), "image " + manifest.str()));
  struct stat until {};
  const bool is_public = ::fstatat(images_.get(), manifest.hex().c_str(), &until, AT_SYMLINK_NOFOLLOW) == 0 &&
                         until.st_mtim.tv_sec > ::time(nullptr);
  if (audience == Audience::everyone && !is_public) return Error(ErrorKind::refused, "not known to be public");
  return SPC_TRY_DURING("image " + manifest.str(), open_files(std::move(record), layers_.get()));
}

Result<ImageFiles> ImageStore::open_files(UniqueFd record, int layers) {
  ImageFiles image{.record = std::move(record)};
  ImageRecordHeader header;
  if (::pread(image.record.get(), &header, sizeof header, 0) != sizeof header ||
      std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers)
    return Error(ErrorKind::not_found, "a record of another version");
  std::vector<Digest> digests(header.layer_count);
  const std::size_t size = digests.size() * sizeof(Digest);
  const bool is_whole = ::pread(image.record.get(), digests.data(), size, sizeof header) == static_cast<ssize_t>(size);
  if (!is_whole) return Error(ErrorKind::not_found, "truncated record");
  for (const Digest& digest : digests) image.layers.push_back(SPC_TRY(open_layer(layers, digest)));
  ::futimens(image.record.get(), nullptr);  // by its age import finds what has not been used for long
  return image;
}

Result<UniqueFd> ImageStore::new_layer() const {
  return own(::openat(layers_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444), "create a layer in the store");
}

Result<UniqueFd> ImageStore::freeze(UniqueFd file) const {
  struct stat status {};
  SPC_TRY(check(::fstat(file.get(), &status), "stat a new file"));
  // Only new_layer() makes nameless read-only files of root on this file system, and others cannot be linked into it.
  if (!S_ISREG(status.st_mode) || status.st_uid != 0 || status.st_nlink != 0 || (status.st_mode & 0222) != 0)
    return Error(ErrorKind::refused, "publish: unexpected file");
  auto reader = SPC_TRY(own(::open(itself(file.get()).c_str(), O_RDONLY | O_CLOEXEC), "open a new layer"));
  file.reset();
  SPC_TRY(prove_no_writer(reader.get()));
  return reader;
}

Result<void> ImageStore::publish(int frozen, const std::string& path) const {
  return link_file(frozen, directory_.get(), path, EEXIST);
}

Result<void> ImageStore::put(const std::string& path, std::vector<UniqueFd> file) const {
  const UniqueFd frozen = file.empty() ? UniqueFd() : SPC_TRY(freeze(std::move(file.front())));
  SPC_TRY(put_file(frozen.get(), directory_.get(), path));
  return frozen ? Result<void>() : check(::unlinkat(directory_.get(), path.c_str(), 0), "remove " + path, ENOENT);
}

Result<void> ImageStore::evict(const Digest& blob) const {
  const auto layer = SPC_TRY(open_layer(layers_.get(), blob));
  if (::flock(layer.file.get(), LOCK_EX | LOCK_NB) != 0)
    return Error(ErrorKind::unavailable, "evict layer " + blob.str() + ": it is in use");
  return check(::unlinkat(layers_.get(), store_layout::layer_file(blob).c_str(), 0), "evict layer " + blob.str());
}

}  // namespace spc::agent
