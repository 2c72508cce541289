// Files of the store: records, names, grants, locks, layers, and the inventory for eviction.

#include "image/store/store.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <string>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/result.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "protocol/store_layout.hpp"

namespace spc {

// --- record ---

namespace {

constexpr std::size_t kMaxOrigins = 64;

template <typename Number>
Number number_in(std::string_view text) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void set(ImageOrigin& origin, std::string_view key, std::string_view value) {
  if (key == "registry") origin.registry = value;
  if (key == "repository") origin.repository = value;
  if (key == "user") origin.user = number_in<std::uint32_t>(value);
  if (key == "name") origin.name = value;
  if (key == "platform") origin.platform = value;
  if (key == "public_until") origin.public_until = number_in<std::int64_t>(value);
}

}  // namespace

std::string serialize(const ImageRecord& record) {
  ImageRecordHeader header;
  std::memcpy(header.magic, ImageRecordHeader::kMagic, sizeof header.magic);
  header.layer_count = static_cast<std::uint32_t>(record.layers.size());
  header.layer_format = record.layer_format;
  header.in_place = record.in_place ? 1 : 0;
  std::uint64_t offset = sizeof header + record.layers.size() * sizeof(Digest);
  const auto place = [&](const std::string& bytes) {
    const ImageRecordHeader::Section section{.offset = offset, .size = bytes.size()};
    offset += bytes.size();
    return section;
  };
  header.settings = place(record.settings);
  header.manifest = place(record.manifest);
  header.config = place(record.config);

  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Digest& layer : record.layers)
    out.append(reinterpret_cast<const char*>(layer.bytes.data()), layer.bytes.size());
  return out + record.settings + record.manifest + record.config;
}

Result<ImageRecord> parse_image_record(std::string_view bytes) {
  const auto damaged = [] {
    return Error(ErrorKind::corrupt, "the image record in the store is corrupt");
  };
  ImageRecordHeader header;
  if (bytes.size() < sizeof header) return damaged();
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers ||
      bytes.size() - sizeof header < header.layer_count * sizeof(Digest)) {
    return damaged();
  }
  for (const auto& section : {header.settings, header.manifest, header.config}) {
    if (section.offset > bytes.size() || section.size > bytes.size() - section.offset)
      return damaged();
  }
  const auto section = [&](const ImageRecordHeader::Section& at) {
    return bytes.substr(static_cast<std::size_t>(at.offset), static_cast<std::size_t>(at.size));
  };
  ImageRecord record;
  record.layer_format = header.layer_format;
  record.in_place = header.in_place != 0;
  record.layers.resize(header.layer_count);
  for (std::size_t i = 0; i < record.layers.size(); ++i) {
    std::memcpy(record.layers[i].bytes.data(), bytes.data() + sizeof header + i * sizeof(Digest),
                sizeof(Digest));
  }
  record.settings = section(header.settings);
  record.manifest = section(header.manifest);
  record.config = section(header.config);
  return record;
}

std::string ImageOrigin::place() const {
  return user ? "user=" + std::to_string(*user) : registry + "/" + repository;
}

const ImageOrigin* ImageOrigins::find(std::string_view place) const {
  const auto found = std::find_if(all_.begin(), all_.end(),
                                  [&](const auto& origin) { return origin.place() == place; });
  return found == all_.end() ? nullptr : &*found;
}

void ImageOrigins::add(ImageOrigin origin) {
  const auto known = std::find_if(all_.begin(), all_.end(),
                                  [&](const auto& one) { return one.place() == origin.place(); });
  if (known != all_.end()) all_.erase(known);
  all_.push_back(std::move(origin));
  if (all_.size() > kMaxOrigins) all_.erase(all_.begin());
}

std::int64_t ImageOrigins::public_until() const {
  std::int64_t until = 0;
  for (const ImageOrigin& origin : all_) until = std::max(until, origin.public_until);
  return until;
}

std::string ImageOrigins::serialize() const {
  std::string out;
  for (const ImageOrigin& origin : all_) {
    add_record(out, "origin", "");
    if (origin.user) {
      add_record(out, "user", std::to_string(*origin.user));
    } else {
      add_record(out, "registry", origin.registry);
      add_record(out, "repository", origin.repository);
    }
    add_record(out, "name", origin.name);
    add_record(out, "platform", origin.platform);
    add_record(out, "public_until", std::to_string(origin.public_until));
  }
  return out;
}

ImageOrigins ImageOrigins::parse(std::string_view bytes) {
  ImageOrigins origins;
  for (Records records(bytes); records.next();) {
    if (records.key() == "origin") origins.all_.emplace_back();
    if (!origins.all_.empty()) set(origins.all_.back(), records.key(), records.value());
  }
  return origins;
}

std::vector<std::string> setting_values(const std::string& settings, std::string_view key) {
  std::vector<std::string> values;
  for (Records records(settings); records.next();) {
    if (records.key() == key) values.emplace_back(records.value());
  }
  // As for docker, `ENTRYPOINT [""]` and `CMD [""]` mean none.
  const bool is_program = key == "entrypoint" || key == "cmd";
  if (is_program && values.size() == 1 && values.front().empty()) values.clear();
  return values;
}

// --- store files ---

namespace {

/// Lock held while a file is replaced. A writer waits at most a second: a user may have stopped the
/// import of a step that holds it.
class DirectoryLock {
 public:
  explicit DirectoryLock(int directory) : directory_(directory) {
    for (int ms = 0; ms < 1000 && ::flock(directory_, LOCK_EX | LOCK_NB) != 0; ++ms)
      ::poll(nullptr, 0, 1);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() { ::flock(directory_, LOCK_UN); }

 private:
  int directory_;
};

}  // namespace

Result<std::optional<std::string>> read_named(int directory, const std::string& name,
                                              std::size_t limit) {
  const UniqueFd file(
      ::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<std::string>();
    return Error::from_errno(errno, formatted("open {} in the image store", in_quotes(name)));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::optional<std::string>();
  return std::optional(SPC_TRY_DURING("image store", read_file(file.get(), limit)));
}

Result<void> write_named(int directory, const std::string& name, std::string_view bytes,
                         Durable durable) {
  const std::string step = formatted("write {} into the image store", in_quotes(name));
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
  // linkat does not replace a file: link under another name and rename. The lock protects that name
  // from other writers, and from a leftover of a killed writer. If a writer could not get the lock,
  // the file of the last writer remains.
  const DirectoryLock lock(directory);
  const std::string next = "." + name.substr(0, 250);
  int failed = EEXIST;
  for (int attempt = 0; failed == EEXIST && attempt < 100; ++attempt) {
    ::unlinkat(directory, next.c_str(), 0);
    failed = link_as(next) == 0 ? 0 : errno;
  }
  if (failed == 0 && ::renameat(directory, next.c_str(), directory, name.c_str()) != 0 &&
      errno != ENOENT)
    failed = errno;
  return failed == 0 ? Result<void>() : Error::from_errno(failed, step);
}

Result<void> remove_named(int directory, const std::string& name) {
  ::unlinkat(directory, ("." + name).c_str(), 0);  // see write_named
  if (::unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return Error::from_errno(errno, formatted("remove {} from the image store", in_quotes(name)));
}

Result<UniqueFd> open_private_directory(int parent, const std::string& name) {
  const std::string step = formatted("open {} in the image store", in_quotes(name));
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, step);
  UniqueFd directory(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, step);
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) return Error::from_errno(errno, step);
  if (status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0) {
    return Error(ErrorKind::refused, step + ": must be owned by this user with mode 0700")
        .hint("remove it");
  }
  return directory;
}

Result<std::optional<std::string>> read_below(int parent, const std::string& directory,
                                              const std::string& name, std::size_t limit) {
  const UniqueFd below(
      ::openat(parent, directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (below) return read_named(below.get(), name, limit);
  if (errno == ENOENT) return std::optional<std::string>();
  return Error::from_errno(errno, formatted("open {} in the image store", in_quotes(directory)));
}

Result<std::vector<std::string>> names_in(int directory) {
  std::vector<std::string> names;
  DirectoryReader files(UniqueFd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  while (files.next()) {
    if (!files.name().starts_with('.')) names.emplace_back(files.name());
  }
  if (files.error() != 0) return Error::from_errno(files.error(), "list the image store");
  return names;
}

std::vector<std::string> names_left_in(int directory) {
  // seconds: a younger file belongs to a writer that is still running
  constexpr std::int64_t kMoment = 60;
  std::vector<std::string> names;
  for (DirectoryReader files(
           UniqueFd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
       files.next();) {
    const std::string name(files.name());
    struct stat status {};
    const bool is_left = name.starts_with('.') &&
                         ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                         S_ISREG(status.st_mode) &&
                         status.st_mtim.tv_sec < std::time(nullptr) - kMoment;
    if (is_left && ::faccessat(directory, name.c_str() + 1, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
      names.push_back(name.substr(1));
  }
  return names;
}

// --- store keeper ---

namespace {

Result<UniqueFd> open_part(int store, const std::string& path) {
  const std::string name = path.substr(0, path.find('/'));
  UniqueFd directory(
      ::openat(store, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory) return directory;
  return Error::from_errno(errno, "open " + name + " in the image store");
}

/// Writes a file below the store's directory. Empty bytes remove it.
Result<void> put(int store, const std::string& path, std::string_view bytes, Durable durable) {
  const auto directory = SPC_TRY(open_part(store, path));
  const std::string name = path.substr(path.find('/') + 1);
  return bytes.empty() ? remove_named(directory.get(), name)
                       : write_named(directory.get(), name, bytes, durable);
}

}  // namespace

Result<void> OwnStoreKeeper::publish_record(const Digest& manifest, std::string_view bytes) {
  return put(store_, store_layout::record_path(manifest), bytes, Durable::yes);
}

Result<void> OwnStoreKeeper::remove_record(const Digest& manifest) {
  return publish_record(manifest, {});
}

Result<void> OwnStoreKeeper::set_name(const Digest& key, std::optional<std::uint32_t> uid,
                                      std::string_view means) {
  const std::string path = uid ? store_layout::grant_path(*uid, key) : store_layout::name_path(key);
  return put(store_, path, means, Durable::no);
}

// --- store ---

namespace {

constexpr std::size_t kMaxRecord = ImageRecordHeader::kMaxBytes;
constexpr std::size_t kMaxOriginsFile = 1 << 20;
constexpr std::size_t kMaxDeliveries = 1 << 20;
constexpr std::size_t kMaxSignaturesFile = 4 << 20;

/// Returns the byte of the file `locks` for a layer: 62 bits of its name. In a collision, two
/// layers wait for each other.
std::int64_t lock_offset(const Digest& layer) {
  return static_cast<std::int64_t>(number_at<std::uint64_t>(layer.bytes, 0) >> 2);
}

/// User slots follow the layers' bytes: 64 bytes for each user.
constexpr std::uint32_t kMaxSlots = 64;
std::int64_t slot_offset(std::uint32_t uid, std::uint32_t slot) {
  return (std::int64_t{1} << 62) + std::int64_t{uid} * kMaxSlots + slot;
}

/// Heartbeats follow the slots. In a collision, two layers wait slightly longer.
std::int64_t pulse_offset(const Digest& layer) {
  return (std::int64_t{3} << 61) + (lock_offset(layer) >> 1);
}

struct flock byte_at(std::int64_t offset, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = offset;
  range.l_len = 1;
  return range;
}

/// Returns a line of images/delivered/<layer>. It is delimited at both ends, so that a line
/// truncated by a full disk does not match another origin.
std::string delivery_line(const std::string& origin) { return "=" + origin + "=\n"; }

/// Reads the file of a key. Returns an empty optional if another name has the same key.
std::optional<NamedImage> named(int directory, const std::string& file, const std::string& name) {
  auto image = read_named_image(directory, file);
  if (image && image->name != name) image.reset();
  return image;
}

}  // namespace

StoreLock::~StoreLock() {
  if (file_ < 0) return;
  struct flock range = byte_at(offset_, F_UNLCK);
  ::fcntl(file_, F_OFD_SETLK, &range);
}

ImageStore::ImageStore(int directory, std::string path, StoreKeeper* keeper)
    : directory_(directory),
      path_(std::move(path)),
      own_(std::make_unique<OwnStoreKeeper>(directory)),
      keeper_(keeper) {
  if (keeper_ == nullptr) keeper_ = own_.get();
}

Result<ImageStore> ImageStore::open(int directory, StoreKeeper* keeper) {
  std::array<char, 4096> path{};
  const std::string self = "/proc/self/fd/" + std::to_string(directory);
  const ssize_t length = ::readlink(self.c_str(), path.data(), path.size());
  const std::string name = length > 0 && path[0] == '/'
                               ? std::string(path.data(), static_cast<std::size_t>(length))
                               : SPC_STORE_DIR;
  const auto open_in = [&](const char* part, int flags) -> Result<UniqueFd> {
    UniqueFd fd(::openat(directory, part, flags | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) {
      const int err = errno;
      return std::move(Error::from_errno(err, "open " + in_quotes(name + "/" + part)))
          .hint("the store is not set up for the user spank-container");
    }
    return fd;
  };
  ImageStore store(directory, name, keeper);
  store.records_ = SPC_TRY(open_in(store_layout::kRecords, O_RDONLY | O_DIRECTORY));
  store.names_ = SPC_TRY(open_in(store_layout::kNames, O_RDONLY | O_DIRECTORY));
  store.grants_ = SPC_TRY(open_in(store_layout::kGrants, O_RDONLY | O_DIRECTORY));
  store.images_ = SPC_TRY(open_in(store_layout::kImages, O_RDONLY | O_DIRECTORY));
  if (auto of_public = open_in(kPublicImages, O_RDONLY | O_DIRECTORY))
    store.public_ = *std::move(of_public);
  auto locks = open_in("locks", O_RDWR | O_CREAT);
  // A read-only store can be used: only processes that write take locks.
  if (!locks && locks.error().sys_errno() == EROFS) locks = open_in("locks", O_RDONLY);
  if (!locks) return std::move(locks).error();
  store.locks_ = *std::move(locks);
  return store;
}

// --- layers ---

Result<UniqueFd> ImageStore::new_layer() const {
  const UniqueFd layers(
      ::openat(directory_, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd file(::openat(layers.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!file) return Error::from_errno(errno, "create a file in the user's image store");
  return file;
}

Result<void> ImageStore::publish_layer(int file, const Digest& name) const {
  const std::string itself = "/proc/self/fd/" + std::to_string(file);
  if (::fsync(file) != 0) return Error::from_errno(errno, "write into the user's image store");
  if (::linkat(AT_FDCWD, itself.c_str(), directory_, store_layout::layer_path(name).c_str(),
               AT_SYMLINK_FOLLOW) != 0 &&
      errno != EEXIST)
    return Error::from_errno(errno, "publish a file in the user's image store");
  return {};
}

bool ImageStore::has_layer(const Digest& name) const {
  struct stat status {};
  return ::fstatat(directory_, store_layout::layer_path(name).c_str(), &status,
                   AT_SYMLINK_NOFOLLOW) == 0;
}

Result<UniqueFd> ImageStore::new_spool() const {
  UniqueFd file(::openat(images_.get(), ".", O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));
  return file ? Result<UniqueFd>(std::move(file))
              : Error::from_errno(errno, "create a file in the store");
}

UniqueFd ImageStore::hold_layer(const Digest& name) const {
  UniqueFd file(::openat(directory_, store_layout::layer_path(name).c_str(),
                         O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // The remover holds the exclusive lock while it unlinks the file.
  if (!file || ::flock(file.get(), LOCK_SH | LOCK_NB) != 0) return {};
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || status.st_nlink == 0) return {};
  return file;
}

bool ImageStore::is_layer_in_use(const Digest& name) const {
  const UniqueFd file(::openat(directory_, store_layout::layer_path(name).c_str(),
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return false;
  // The layer is linked in a named container as well, or locked by a user.
  return status.st_nlink > 1 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

Result<std::optional<StoreLock>> ImageStore::try_lock_byte(std::int64_t offset) const {
  struct flock range = byte_at(offset, F_WRLCK);
  if (::fcntl(locks_.get(), F_OFD_SETLK, &range) == 0)
    return std::optional(StoreLock(locks_.get(), offset));
  if (errno == EAGAIN || errno == EACCES) return std::optional<StoreLock>();
  return Error::from_errno(errno == EBADF ? EROFS : errno, "lock image store " + in_quotes(path_));
}

Result<std::optional<StoreLock>> ImageStore::try_lock(const Digest& layer) const {
  return try_lock_byte(lock_offset(layer));
}

void ImageStore::pulse(const Digest& layer, bool yes) const {
  struct flock range = byte_at(pulse_offset(layer), yes ? F_WRLCK : F_UNLCK);
  ::fcntl(locks_.get(), F_OFD_SETLK, &range);
}

bool ImageStore::pulse_of_others(const Digest& layer) const {
  struct flock range = byte_at(pulse_offset(layer), F_WRLCK);
  return ::fcntl(locks_.get(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

Result<std::optional<StoreLock>> ImageStore::try_slot(std::uint32_t uid,
                                                      std::uint32_t slots) const {
  for (std::uint32_t slot = 0; slot < slots && slot < kMaxSlots; ++slot) {
    auto lock = SPC_TRY(try_lock_byte(slot_offset(uid, slot)));
    if (lock) return lock;
  }
  return std::optional<StoreLock>();
}

bool ImageStore::was_delivered(const Digest& layer, const std::string& origin) const {
  const auto lines = read_below(images_.get(), "delivered", layer.hex(), kMaxDeliveries);
  return lines && *lines &&
         ("\n" + **lines).find("\n" + delivery_line(origin)) != std::string::npos;
}

Result<void> ImageStore::note_delivery(const Digest& layer, const std::string& origin) const {
  if (was_delivered(layer, origin)) return {};
  const std::string step = "record the origin of a layer in the image store";
  const auto directory = SPC_TRY(open_private_directory(images_.get(), "delivered"));
  const UniqueFd file(::openat(directory.get(), layer.hex().c_str(),
                               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Error::from_errno(errno, step);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, step);
  const std::string line = (status.st_size > 0 ? "\n" : "") + delivery_line(origin);
  if (static_cast<std::size_t>(status.st_size) + line.size() > kMaxDeliveries) {
    if (::ftruncate(file.get(), 0) != 0) return Error::from_errno(errno, step);
  }
  return write_all(file.get(), line);
}

Result<void> ImageStore::forget_deliveries(const Digest& layer) const {
  return remove_named(images_.get(), "delivered/" + layer.hex());
}

// --- images ---

Result<std::optional<ImageRecord>> ImageStore::image(const Digest& manifest) const {
  const auto bytes = SPC_TRY(read_named(records_.get(), manifest.hex(), kMaxRecord));
  if (!bytes) return std::optional<ImageRecord>();
  auto record = parse_image_record(*bytes);
  if (!record || record->layer_format != kLayerFormat) return std::optional<ImageRecord>();
  return std::optional(*std::move(record));
}

Result<void> ImageStore::write_image(const Digest& manifest, const ImageRecord& record) const {
  const std::string bytes = serialize(record);
  const auto there = read_named(records_.get(), manifest.hex(), kMaxRecord);
  return there && *there == bytes ? Result<void>() : keeper_->publish_record(manifest, bytes);
}

std::int64_t ImageStore::public_until(const Digest& manifest) const {
  struct stat status {};
  return ::fstatat(images_.get(), manifest.hex().c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0
             ? status.st_mtim.tv_sec
             : 0;
}

Result<void> ImageStore::set_public_until(const Digest& manifest, std::int64_t when) const {
  if (when == 0) SPC_TRY(remove_public(manifest));
  if (when == 0) return remove_named(images_.get(), manifest.hex());
  SPC_TRY(write_named(images_.get(), manifest.hex(), "", Durable::no));
  const timespec times[] = {{0, UTIME_OMIT}, {when, 0}};
  if (::utimensat(images_.get(), manifest.hex().c_str(), times, AT_SYMLINK_NOFOLLOW) == 0)
    return {};
  return Error::from_errno(errno, "write into the image store");
}

Result<ImageOrigins> ImageStore::origins(const Digest& manifest) const {
  const auto bytes =
      SPC_TRY(read_below(images_.get(), store_layout::kOrigins, manifest.hex(), kMaxOriginsFile));
  return ImageOrigins::parse(bytes.value_or(""));
}

Result<void> ImageStore::write_origins(const Digest& manifest, const ImageOrigins& origins) const {
  const auto directory = SPC_TRY(open_private_directory(images_.get(), store_layout::kOrigins));
  return write_named(directory.get(), manifest.hex(), origins.serialize(), Durable::no);
}

Result<std::string> ImageStore::signatures(const Digest& manifest) const {
  return SPC_TRY(read_below(images_.get(), store_layout::kSignatures, manifest.hex(),
                            kMaxSignaturesFile))
      .value_or("");
}

Result<void> ImageStore::write_signatures(const Digest& manifest, std::string_view records) const {
  const auto directory = SPC_TRY(open_private_directory(images_.get(), store_layout::kSignatures));
  return write_named(directory.get(), manifest.hex(), records, Durable::no);
}

Result<void> ImageStore::write_public(const Digest& manifest, ImageRecord record,
                                      const std::string& platform) const {
  if (!public_) return {};
  std::uint64_t bytes = 0;
  struct stat status {};
  for (const Digest& layer : std::set(record.layers.begin(), record.layers.end())) {
    if (::fstatat(directory_, store_layout::layer_path(layer).c_str(), &status,
                  AT_SYMLINK_NOFOLLOW) == 0)
      bytes += static_cast<std::uint64_t>(status.st_size);
  }
  add_record(record.settings, "platform", platform);
  add_record(record.settings, "bytes", std::to_string(bytes));
  return write_named(public_.get(), manifest.hex(), serialize(record), Durable::no);
}

Result<void> ImageStore::remove_public(const Digest& manifest) const {
  return public_ ? remove_named(public_.get(), manifest.hex()) : Result<void>();
}

Result<void> ImageStore::remove_image(const Digest& manifest) const {
  SPC_TRY(remove_public(manifest));
  SPC_TRY(keeper_->remove_record(manifest));
  SPC_TRY(remove_named(images_.get(), manifest.hex()));
  for (const char* about : {store_layout::kOrigins, store_layout::kSignatures}) {
    SPC_TRY(remove_named(images_.get(), std::string(about) + "/" + manifest.hex()));
  }
  return {};
}

void ImageStore::touch_image(const Digest& manifest) const {
  ::utimensat(records_.get(), manifest.hex().c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

// --- names ---

void ImageStore::touch_name(const std::string& name) const {
  // seconds; of many starts at the same time, only one writes the name
  constexpr std::int64_t kMoment = 1;
  const auto image = public_name(name);
  if (image && image->written < std::time(nullptr) - kMoment) static_cast<void>(write_name(*image));
}

std::optional<NamedImage> ImageStore::public_name(const std::string& name) const {
  return named(directory_, store_layout::name_path(name_key(name)), name);
}

Result<void> ImageStore::write_name(const NamedImage& image) const {
  return keeper_->set_name(name_key(image.name), std::nullopt, image.str());
}

Result<void> ImageStore::remove_name(const std::string& name) const {
  return public_name(name) ? keeper_->set_name(name_key(name), std::nullopt, {}) : Result<void>();
}

std::optional<NamedImage> ImageStore::grant(std::uint32_t uid, const std::string& name) const {
  return named(directory_, store_layout::grant_path(uid, name_key(name)), name);
}

Result<void> ImageStore::write_grant(std::uint32_t uid, const NamedImage& image) const {
  return keeper_->set_name(name_key(image.name), uid, image.str());
}

Result<void> ImageStore::forget_names(const std::set<Digest>& manifests) const {
  for (const int directory : {names_.get(), grants_.get()}) {
    for (const std::string& file : SPC_TRY(names_in(directory))) {
      const auto image = read_named_image(directory, file);
      if (!image || !manifests.contains(image->manifest)) continue;
      std::optional<std::uint32_t> uid;
      if (directory == grants_.get())
        uid = static_cast<std::uint32_t>(std::strtoul(file.c_str(), nullptr, 10));
      SPC_TRY(keeper_->set_name(name_key(image->name), uid, {}));
    }
  }
  return {};
}

// --- free space ---

Result<StoreSpace> ImageStore::space() const {
  struct statvfs status {};
  if (::fstatvfs(directory_, &status) != 0)
    return Error::from_errno(errno, "get the free space of the image store");
  const std::uint64_t unit = status.f_frsize;
  return StoreSpace{.total = status.f_blocks * unit,
                    .used = (status.f_blocks - status.f_bfree) * unit,
                    .free = status.f_bavail * unit,
                    .free_inodes = status.f_favail};
}

// --- inventory ---

namespace {

/// Reads only the head of a record: the rest may be megabytes.
Result<StoredRecord> read_head(const ImageStore& store, int file, const Digest& manifest) {
  StoredRecord record{.manifest = manifest, .layers = {}};
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "stat an image in the store");
  record.last_used = status.st_mtim.tv_sec;
  ImageRecordHeader header;
  if (::pread(file, &header, sizeof header, 0) != sizeof header ||
      std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers) {
    return record;
  }
  record.layers.resize(header.layer_count);
  const auto bytes = static_cast<ssize_t>(header.layer_count * sizeof(Digest));
  if (::pread(file, record.layers.data(), static_cast<std::size_t>(bytes), sizeof header) !=
      bytes) {
    record.layers.clear();
    return record;
  }
  record.public_until = store.public_until(manifest);
  record.layer_format = header.layer_format;
  if (header.in_place != 0) record.layers.clear();
  return record;
}

Result<std::vector<StoredLayer>> list_layers(const ImageStore& store) {
  const UniqueFd directory(::openat(store.directory(), store_layout::kLayers,
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!directory) return Error::from_errno(errno, "open the layers in " + in_quotes(store.path()));
  std::vector<StoredLayer> layers;
  for (const auto& file : SPC_TRY(names_in(directory.get()))) {
    if (!file.ends_with(store_layout::kLayerEnding)) continue;
    const auto name =
        Digest::parse("sha256:" + file.substr(0, file.size() - store_layout::kLayerEnding.size()));
    struct stat status {};
    if (!name || ::fstatat(directory.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    layers.push_back(
        {*name, static_cast<std::uint64_t>(status.st_blocks) * 512, status.st_mtim.tv_sec});
  }
  return layers;
}

}  // namespace

Result<std::vector<StoredRecord>> list_records(const ImageStore& store) {
  std::vector<StoredRecord> images;
  std::set<Digest> seen;
  // Earlier versions stored records in images/. They cannot be started, but their layers are kept
  // until the image is pulled again.
  for (const int directory : {store.records(), store.images()}) {
    for (const auto& name : SPC_TRY(names_in(directory))) {
      const auto manifest = Digest::parse("sha256:" + name);
      if (!manifest || !seen.insert(*manifest).second) continue;
      const UniqueFd file(
          ::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
      if (file) images.push_back(SPC_TRY(read_head(store, file.get(), *manifest)));
    }
  }
  return images;
}

Result<StoreInventory> take_inventory(const ImageStore& store) {
  StoreInventory inventory;
  inventory.images = SPC_TRY(list_records(store));
  for (const auto& name : names_left_in(store.records())) {
    if (const auto manifest = Digest::parse("sha256:" + name))
      inventory.images.push_back({.manifest = *manifest, .layers = {}});
  }
  inventory.layers = SPC_TRY(list_layers(store));
  return inventory;
}

}  // namespace spc
