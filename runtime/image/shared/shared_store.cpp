#include "image/shared/shared_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc {
namespace {

constexpr char kPlaceName[] = "name";  // in delivered/<place>/

UniqueFd open_below(int parent, const std::string& name, int flags) {
  return UniqueFd(::openat(parent, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0600));
}

/// A directory that only we can enter.
Result<UniqueFd> make_directory(int parent, const std::string& name) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, "make directory " + in_quotes(name));
  UniqueFd made = open_below(parent, name, O_RDONLY | O_DIRECTORY);
  if (!made) return Error::from_errno(errno, "open directory " + in_quotes(name));
  return made;
}

Result<void> check_owner(int directory) {
  struct stat status {};
  if (::fstat(directory, &status) != 0) return Error::from_errno(errno, "look at it");
  if (status.st_uid != ::geteuid())
    return Error(ErrorKind::refused, "belongs to another user")
        .hint("its owner must be the service user, with one uid on all nodes");
  if ((status.st_mode & 077) != 0)
    return Error(ErrorKind::refused, "can be entered by others").hint("chmod 0700");
  return {};
}

/// Asks its server what is in a directory now: NFS may remember for half a minute what was not
/// there.
void refresh(int directory) {
  struct statx now {};
  ::statx(directory, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME, &now);
}

std::string key_of(std::string_view place) { return Sha256::of(place).hex(); }

/// A lease's note is anybody's text.
bool is_name_for(const Digest& blob, const std::string& name) {
  return name.starts_with(blob.hex() + ".") && name.find('/') == std::string::npos;
}

std::string lease_name(const Digest& blob, std::string_view place) {
  return blob.hex() + "." + key_of(place).substr(0, 16);
}

/// Its length is what was to be written.
bool is_file_of(int file, std::uint64_t size) {
  struct stat status {};
  return ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) == size;
}

}  // namespace

Result<SharedStore> SharedStore::open(const std::string& directory, std::uint64_t max_size) {
  const auto opened = [&]() -> Result<SharedStore> {
    const UniqueFd top(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!top) return Error::from_errno(errno, "open it");
    SPC_TRY(check_owner(top.get()));
    SharedStore store;
    store.directory_ = directory;
    store.max_size_ = max_size;
    const UniqueFd blobs = SPC_TRY(make_directory(top.get(), "blobs"));
    store.blobs_ = SPC_TRY(make_directory(blobs.get(), "sha256"));
    store.layers_ = SPC_TRY(make_directory(top.get(), "layers"));
    store.delivered_ = SPC_TRY(make_directory(top.get(), "delivered"));
    store.leases_ = SPC_TRY(make_directory(top.get(), "leases"));
    store.temporary_ = SPC_TRY(make_directory(top.get(), "tmp"));
    return store;
  };
  return SPC_TRY_DURING("shared store " + in_quotes(directory), opened());
}

bool SharedStore::has_delivered(std::string_view place, const Digest& blob) const {
  refresh(delivered_.get());
  const UniqueFd notes = open_below(delivered_.get(), key_of(place), O_RDONLY | O_DIRECTORY);
  if (!notes) return false;
  refresh(notes.get());
  if (::faccessat(notes.get(), blob.hex().c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) return false;
  refresh(blobs_.get());  // where it is looked for next
  return true;
}

void SharedStore::note_delivery(std::string_view place, const Digest& blob) const {
  const auto directory = make_directory(delivered_.get(), key_of(place));
  if (!directory) return;
  (void)open_below(directory->get(), blob.hex(), O_WRONLY | O_CREAT | O_NONBLOCK);
  const UniqueFd name =
      open_below(directory->get(), kPlaceName, O_WRONLY | O_CREAT | O_EXCL | O_NONBLOCK);
  if (name) (void)write_all(name.get(), place);
}

UniqueFd SharedStore::find(const Digest& blob, std::uint64_t size, std::string_view place) const {
  if (!has_delivered(place, blob)) return {};
  UniqueFd file = open_below(blobs_.get(), blob.hex(), O_RDONLY | O_NONBLOCK);
  if (!file || !is_file_of(file.get(), size)) return {};
  ::futimens(file.get(), nullptr);
  return file;
}

Result<std::optional<Lease>> SharedStore::lease(const Digest& blob, std::string_view place,
                                                WatchedLease& others) const {
  return take_lease(leases_.get(), lease_name(blob, place), others);
}

UniqueFd SharedStore::follow(const std::string& name, const Digest& blob) const {
  if (!is_name_for(blob, name)) return {};
  UniqueFd file = open_below(temporary_.get(), name, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  return file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) ? std::move(file)
                                                                              : UniqueFd();
}

void SharedStore::adopt(const std::string& name, const Digest& blob, std::string_view place) const {
  constexpr std::int64_t kSilence =
      60;  // by a clock of our own: who is alive loses nothing but a call
  const std::string lease = lease_name(blob, place);
  struct stat status {};
  if (!is_name_for(blob, name)) return;
  if (::fstatat(leases_.get(), lease.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      status.st_mtim.tv_sec > std::time(nullptr) - kSilence)
    return;
  if (::renameat(temporary_.get(), name.c_str(), blobs_.get(), blob.hex().c_str()) != 0) return;
  note_delivery(place, blob);
  ::unlinkat(leases_.get(), lease.c_str(), 0);
}

std::optional<std::string> SharedStore::document(const Digest& digest, std::size_t limit,
                                                 std::string_view place) const {
  auto bytes = has_delivered(place, digest) ? look_at(digest, limit) : std::nullopt;
  if (bytes) ::utimensat(blobs_.get(), digest.hex().c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return bytes;
}

std::optional<std::string> SharedStore::look_at(const Digest& digest, std::size_t limit) const {
  const UniqueFd file = open_below(blobs_.get(), digest.hex(), O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  auto bytes = read_file(file.get(), limit);
  if (!bytes || Sha256::of(*bytes) != digest) return std::nullopt;
  return *std::move(bytes);
}

void SharedStore::add_document(const Digest& digest, std::string_view bytes,
                               std::string_view place) const {
  auto blob = new_blob(digest, bytes.size());
  if (blob && write_all(blob->file(), bytes)) (void)blob->publish(place);
}

Result<SharedStore::NewBlob> SharedStore::new_blob(const Digest& blob, std::uint64_t size) const {
  if (max_size_ != 0 && size > max_size_)
    return Error(ErrorKind::no_space, formatted("{} bytes are more than its max_size", size));
  const std::string name = blob.hex() + "." + random_text();
  UniqueFd file(::openat(temporary_.get(), name.c_str(),
                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file)
    return Error::from_errno(errno, "make a file in shared store " + in_quotes(directory_));
  NewBlob made(*this, blob, name, std::move(file));
  struct stat status {};
  if (::fstat(made.file(), &status) == 0)
    make_room(size, status.st_mtim.tv_sec);  // the file system's own clock
  return made;
}

SharedStore::NewBlob::~NewBlob() {
  if (file_) ::unlinkat(store_.temporary_.get(), name_.c_str(), 0);
}

Result<void> SharedStore::NewBlob::publish(std::string_view place) {
  const std::string step =
      "write " + in_quotes(blob_.str()) + " into shared store " + in_quotes(store_.directory_);
  if (::fsync(file_.get()) != 0) return Error::from_errno(errno, step);
  if (::renameat(store_.temporary_.get(), name_.c_str(), store_.blobs_.get(),
                 blob_.hex().c_str()) != 0) {
    return Error::from_errno(errno, step);
  }
  file_.reset();
  store_.note_delivery(place, blob_);
  return {};
}

void SharedStore::remove(const Digest& blob) const {
  ::unlinkat(blobs_.get(), blob.hex().c_str(), 0);
}

}  // namespace spc
