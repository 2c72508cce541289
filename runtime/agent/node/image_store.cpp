#include "agent/node/image_store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "agent/node/system_call.hpp"
#include "protocol/image_record.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {
namespace {

Result<UniqueFd> open_directory(int parent, const char* name) {
  return own(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), "open store directory " + quoted(name));
}

Result<LayerFile> open_layer(int layers, const Digest& digest) {
  constexpr int kHow = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  auto file = SPC_TRY(own(::openat(layers, store_layout::layer_file(digest).c_str(), kHow), "open layer " + digest.str()));
  struct stat status {};
  SPC_TRY(check(::fstat(file.get(), &status), "stat layer " + digest.str()));
  if (!S_ISREG(status.st_mode) || status.st_uid != 0 || (status.st_mode & 0222) != 0) {
    return Error(ErrorKind::corrupt, "layer " + digest.str() + ": not a read-only file owned by root");
  }
  // The lock lasts as long as this open file description, which a loop device or server keeps too. Where it is not granted
  // somebody is just evicting the layer: then the file loses its name but not its bytes.
  ::flock(file.get(), LOCK_SH | LOCK_NB);
  return LayerFile{std::move(file), digest};
}

/// A lease for reading is granted only while nobody has the file open for writing (fcntl(2), F_SETLEASE): from then
/// on its bytes cannot change, as its mode is 0444. The writers have exited or are just closing, hence the retries.
Result<void> prove_no_writer(int file) {
  for (int attempt = 0;; ++attempt) {
    if (::fcntl(file, F_SETLEASE, F_RDLCK) == 0) {
      ::fcntl(file, F_SETLEASE, F_UNLCK);
      return {};
    }
    if (errno != EAGAIN || attempt == 200) return Error::from_errno(errno, "publish a layer: it is still open for writing");
    const timespec moment{0, 1'000'000};
    ::nanosleep(&moment, nullptr);
  }
}

}  // namespace

Result<ImageStore> ImageStore::open(const char* directory) {
  ImageStore store;
  constexpr int kHow = O_PATH | O_DIRECTORY | O_CLOEXEC;
  store.directory_ = SPC_TRY(own(::open(directory, kHow), "open the image store " + quoted(directory)));
  store.layers_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kLayers));
  store.images_ = SPC_TRY(open_directory(store.directory_.get(), store_layout::kImages));
  struct stat status {};
  SPC_TRY(check(::fstat(store.images_.get(), &status), "stat the store"));
  store.service_uid_ = status.st_uid;
  store.service_gid_ = status.st_gid;
  return store;
}

Result<ImageFiles> ImageStore::open_image(const Digest& manifest, Audience audience) const {
  constexpr int kHow = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  auto record = SPC_TRY(own(::openat(images_.get(), manifest.hex().c_str(), kHow), "open image " + manifest.str()));
  return SPC_TRY_DURING("image " + manifest.str(), open_files(std::move(record), layers_.get(), audience));
}

Result<ImageFiles> ImageStore::open_files(UniqueFd record, int layers, Audience audience) {
  ImageFiles image{.record = std::move(record)};
  ImageRecordHeader header;
  if (::pread(image.record.get(), &header, sizeof header, 0) != sizeof header ||
      std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers) {
    return Error(ErrorKind::not_found, "a record of another version");
  }
  if (audience == Audience::everyone && header.public_until <= ::time(nullptr)) {
    return Error(ErrorKind::refused, "not known to be public");
  }
  for (std::uint32_t i = 0; i < header.layer_count; ++i) {
    Digest digest;
    const auto offset = static_cast<off_t>(sizeof header + i * sizeof digest);
    if (::pread(image.record.get(), digest.bytes.data(), digest.bytes.size(), offset) != sizeof digest) {
      return Error(ErrorKind::not_found, "truncated record");
    }
    image.layers.push_back(SPC_TRY(open_layer(layers, digest)));
  }
  // By its age import finds what has not been used for long; noatime must not hide it.
  const timespec used[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  ::futimens(image.record.get(), used);
  return image;
}

Result<UniqueFd> ImageStore::new_layer() const {
  return own(::openat(layers_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444), "create a layer in the store");
}

Result<UniqueFd> ImageStore::freeze(UniqueFd file) const {
  struct stat status {};
  struct stat directory {};
  SPC_TRY(check(::fstat(file.get(), &status), "stat a layer"));
  SPC_TRY(check(::fstat(layers_.get(), &directory), "stat the store"));
  // Only new_layer() makes nameless read-only files of root on this file system.
  if (!S_ISREG(status.st_mode) || status.st_uid != 0 || status.st_nlink != 0 || (status.st_mode & 0222) != 0 ||
      status.st_dev != directory.st_dev) {
    return Error(ErrorKind::refused, "publish a layer: unexpected file");
  }
  auto reader = SPC_TRY(own(::open(itself(file.get()).c_str(), O_RDONLY | O_CLOEXEC), "open a new layer"));
  file.reset();
  SPC_TRY(prove_no_writer(reader.get()));
  return reader;
}

Result<void> ImageStore::publish(int frozen, const Digest& blob) const {
  const int failed =
      ::linkat(AT_FDCWD, itself(frozen).c_str(), layers_.get(), store_layout::layer_file(blob).c_str(), AT_SYMLINK_FOLLOW);
  if (failed != 0 && errno == EEXIST) return {};
  return check(failed, "publish layer " + blob.str());
}

Result<void> ImageStore::evict(const Digest& blob) const {
  const auto layer = SPC_TRY(open_layer(layers_.get(), blob));
  if (::flock(layer.file.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(ErrorKind::unavailable, "evict layer " + blob.str() + ": it is in use");
  }
  struct stat status {};
  if (::fstat(layer.file.get(), &status) == 0 && status.st_nlink > 1) {  // to unlink it here would free nothing
    return Error(ErrorKind::unavailable, "evict layer " + blob.str() + ": used by a named container");
  }
  return check(::unlinkat(layers_.get(), store_layout::layer_file(blob).c_str(), 0), "evict layer " + blob.str());
}

}  // namespace spc::agent
