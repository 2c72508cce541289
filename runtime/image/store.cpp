#include "store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/file.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxRecord = 24 << 20;

/// A byte of the file `locks` for each layer: 62 bits of its digest. Two layers on one byte would only wait for each
/// other.
std::int64_t lock_offset(const Digest& blob) {
  std::uint64_t value = 0;
  std::memcpy(&value, blob.bytes.data(), sizeof value);
  return static_cast<std::int64_t>(value >> 2);
}

struct flock byte_at(std::int64_t offset, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = offset;
  range.l_len = 1;
  return range;
}

Result<UniqueFd> open_in(int directory, const char* name, int flags) {
  UniqueFd fd(::openat(directory, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    const int err = errno;
    return std::move(Error::from_errno(err, "open " + quoted(std::string(SPC_STORE_DIR "/") + name)))
        .hint("the store has to be set up for the user spank-container");
  }
  return fd;
}

/// The whole file, or empty when there is none.
Result<std::optional<std::string>> read_named(int directory, const std::string& name, std::size_t limit) {
  const UniqueFd file(::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<std::string>();
    return Error::from_errno(errno, "open " + quoted(name) + " in the image store");
  }
  return std::optional(SPC_TRY_DURING("image store", read_file(file.get(), limit)));
}

/// Held for the moment in which a file is replaced.
class DirectoryLock {
 public:
  explicit DirectoryLock(int directory) : directory_(directory) {
    while (::flock(directory_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() { ::flock(directory_, LOCK_UN); }

 private:
  int directory_;
};

enum class Durable { yes, no };

/// Makes or replaces a file: it is written without a name and gets it when it is complete.
Result<void> write_named(int directory, const std::string& name, std::string_view bytes, Durable durable) {
  const std::string step = "write " + quoted(name) + " into the image store";
  const UniqueFd file(::openat(directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0444));
  if (!file) return Error::from_errno(errno, step);
  SPC_TRY_DURING(step, write_all(file.get(), bytes));
  if (durable == Durable::yes && ::fsync(file.get()) != 0) return Error::from_errno(errno, step);
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  const auto link_as = [&](const std::string& as) {
    return ::linkat(AT_FDCWD, self.c_str(), directory, as.c_str(), AT_SYMLINK_FOLLOW);
  };
  if (link_as(name) == 0) return {};
  if (errno != EEXIST) return Error::from_errno(errno, step);
  // linkat does not replace: link under another name and rename. The lock makes that name ours, and what a writer
  // that was killed has left there as well.
  const DirectoryLock lock(directory);
  const std::string next = "." + name.substr(0, 250);
  ::unlinkat(directory, next.c_str(), 0);
  if (link_as(next) != 0 || ::renameat(directory, next.c_str(), directory, name.c_str()) != 0) {
    return Error::from_errno(errno, step);
  }
  return {};
}

}  // namespace

LayerLock::~LayerLock() {
  if (file_ < 0) return;
  struct flock range = byte_at(offset_, F_UNLCK);
  ::fcntl(file_, F_OFD_SETLK, &range);
}

Result<ImageStore> ImageStore::open(int directory) {
  auto images = SPC_TRY(open_in(directory, "images", O_RDONLY | O_DIRECTORY));
  auto refs = SPC_TRY(open_in(directory, "refs", O_RDONLY | O_DIRECTORY));
  auto locks = SPC_TRY(open_in(directory, "locks", O_RDWR | O_CREAT));
  return ImageStore(directory, std::move(images), std::move(refs), std::move(locks));
}

bool ImageStore::has_layer(const Digest& blob) const {
  struct stat status {};
  const std::string path = "layers/sha256/" + blob.hex() + ".sqsh";
  return ::fstatat(directory_, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<std::optional<LayerLock>> ImageStore::try_lock(const Digest& blob) const {
  const std::int64_t offset = lock_offset(blob);
  struct flock range = byte_at(offset, F_WRLCK);
  if (::fcntl(locks_.get(), F_OFD_SETLK, &range) == 0) return std::optional(LayerLock(locks_.get(), offset));
  if (errno == EAGAIN || errno == EACCES) return std::optional<LayerLock>();
  return Error::from_errno(errno, "lock a layer in the image store");
}

Result<std::optional<ImageRecord>> ImageStore::image(const Digest& manifest) const {
  const auto bytes = SPC_TRY(read_named(images_.get(), manifest.hex(), kMaxRecord));
  if (!bytes) return std::optional<ImageRecord>();
  auto record = parse_image_record(*bytes);
  if (!record) return std::optional<ImageRecord>();
  return std::optional(*std::move(record));
}

Result<void> ImageStore::write_image(const Digest& manifest, const ImageRecord& record) const {
  return write_named(images_.get(), manifest.hex(), serialize(record), Durable::yes);
}

Result<std::optional<ImageStore::Ref>> ImageStore::ref(const std::string& name) const {
  const auto text = SPC_TRY(read_named(refs_.get(), name, 4096));
  if (!text) return std::optional<Ref>();
  // A file that was damaged by a crash is as good as none.
  constexpr std::size_t kDigest = 7 + 64;
  Ref ref;
  const auto digest = Digest::parse(std::string_view(*text).substr(0, kDigest));
  if (!digest || text->size() < kDigest + 2 || (*text)[kDigest] != ' ') return std::optional<Ref>();
  ref.manifest = *digest;
  const auto [end, error] = std::from_chars(text->data() + kDigest + 1, text->data() + text->size(), ref.asked_at);
  if (error != std::errc{} || end == text->data() + text->size() || *end != '\n') return std::optional<Ref>();
  return std::optional(ref);
}

Result<void> ImageStore::write_ref(const std::string& name, const Ref& ref) const {
  return write_named(refs_.get(), name, ref.manifest.str() + " " + std::to_string(ref.asked_at) + "\n", Durable::no);
}

Result<std::uint64_t> ImageStore::free_bytes() const {
  struct statvfs status {};
  if (::fstatvfs(directory_, &status) != 0) return Error::from_errno(errno, "ask for free space in the image store");
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

}  // namespace spc
