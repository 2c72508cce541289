#include "image/store/store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/file.hpp"
#include "base/sha256.hpp"
#include "image/store/store_files.hpp"
#include "protocol/store_layout.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxRecord = ImageRecordHeader::kMaxBytes;
constexpr std::size_t kMaxOriginsFile = 1 << 20;
constexpr std::size_t kMaxDeliveries = 1 << 20;
constexpr std::size_t kMaxSignaturesFile = 4 << 20;

/// An image of so many layers is cheap to mount, and stays as it is.
constexpr std::size_t kFewLayers = 16;
/// Blobs up to this size are merged: what images share is mostly in larger ones.
constexpr std::uint64_t kSmallLayer = 16 << 20;
/// Layers of one run: few at the bottom, where images have a base in common, and many above so many
/// layers. 500 small layers are 15 files.
constexpr std::size_t kShortRun = 8, kLongRun = 64;

/// A byte of the file `locks` for each layer: 62 bits of its name. Two layers on one byte would
/// only wait for each other.
std::int64_t lock_offset(const Digest& layer) {
  std::uint64_t value = 0;
  std::memcpy(&value, layer.bytes.data(), sizeof value);
  return static_cast<std::int64_t>(value >> 2);
}

/// Behind those of the layers: 64 bytes for each user.
constexpr std::uint32_t kMaxSlots = 64;
std::int64_t slot_offset(std::uint32_t uid, std::uint32_t slot) {
  return (std::int64_t{1} << 62) + std::int64_t{uid} * kMaxSlots + slot;
}

/// Behind all of those; two layers on one byte would only wait a little longer.
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

/// A line of images/delivered/<layer>. Both signs: a line that was cut off by a full disk must not
/// be another origin's.
std::string delivery_line(const std::string& origin) { return "=" + origin + "=\n"; }

/// It is where its key is, unless another name has the same key.
std::optional<NamedImage> named(int directory, const std::string& file, const std::string& name) {
  auto image = read_named_image(directory, file);
  if (image && image->name != name) image.reset();
  return image;
}

}  // namespace

Digest layer_name(const Digest& blob, std::uint32_t format) {
  Digest name = blob;
  name.bytes.back() ^= static_cast<std::uint8_t>(format - 1);
  return name;
}

std::vector<Digest> distinct_layers(std::span<const Digest> blobs) {
  std::vector<Digest> layers;
  std::set<Digest> seen;
  for (std::size_t i = blobs.size(); i-- > 0;) {
    if (seen.insert(blobs[i]).second) layers.push_back(blobs[i]);
  }
  std::ranges::reverse(layers);
  return layers;
}

std::vector<LayerNames> layer_names(std::span<const Digest> blobs, std::uint32_t format) {
  std::vector<LayerNames> names;
  Digest below;
  for (const Digest& blob : blobs) {
    Sha256 hash;
    if (!names.empty()) hash.update(std::as_bytes(std::span(below.bytes)));
    hash.update(std::as_bytes(std::span(blob.bytes)));
    below = hash.finish();
    Digest fitted = below;
    for (auto& byte : fitted.bytes) byte = static_cast<std::uint8_t>(~byte);
    names.push_back({.alone = layer_name(blob, format), .fitted = layer_name(fitted, format)});
  }
  return names;
}

std::vector<LayerRun> plan_runs(std::span<const std::uint64_t> sizes) {
  std::vector<LayerRun> runs;
  for (std::size_t place = 0; place < sizes.size(); ++place) {
    const bool is_small = sizes.size() > kFewLayers && sizes[place] <= kSmallLayer;
    const bool joins =
        is_small && place > 0 && sizes[place - 1] <= kSmallLayer &&
        place - runs.back().begin < (runs.back().begin < kLongRun ? kShortRun : kLongRun);
    if (joins) {
      runs.back().end = place + 1;
    } else {
      runs.push_back({place, place + 1});
    }
  }
  return runs;
}

Digest merged_name(std::size_t begin, const LayerNames& top) {
  const std::uint64_t place = begin;
  Sha256 hash;
  hash.update(std::as_bytes(std::span(top.fitted.bytes)));
  hash.update(std::as_bytes(std::span(&place, 1)));
  Digest name = hash.finish();
  for (auto& byte : name.bytes) byte = static_cast<std::uint8_t>(~byte);
  return name;
}

std::optional<std::vector<LayerRun>> runs_of(std::span<const Digest> files,
                                             std::span<const LayerNames> layers) {
  std::vector<LayerRun> runs;
  std::size_t begin = 0;
  for (const Digest& file : files) {
    if (begin == layers.size()) return std::nullopt;
    std::size_t end = begin + 1;
    if (file != layers[begin].alone && file != layers[begin].fitted) {
      const std::size_t most = std::min(begin + kLongRun, layers.size());
      do {
        if (++end > most) return std::nullopt;
      } while (file != merged_name(begin, layers[end - 1]));
    }
    runs.push_back({begin, end});
    begin = end;
  }
  if (begin != layers.size()) return std::nullopt;
  return runs;
}

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
  auto locks = open_in("locks", O_RDWR | O_CREAT);
  // What is in a read-only store can be used all the same: only who brings something takes a lock.
  if (!locks && locks.error().sys_errno() == EROFS) locks = open_in("locks", O_RDONLY);
  if (!locks) return std::move(locks).error();
  store.locks_ = *std::move(locks);
  return store;
}

// --- layers ---

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
  // Whoever takes it away has the exclusive lock for the moment in which it loses its name.
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
  return status.st_nlink > 1 || ::flock(file.get(), LOCK_EX | LOCK_NB) !=
                                    0;  // a named container has it, too, or somebody uses it
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

Result<void> ImageStore::remove_image(const Digest& manifest) const {
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
  constexpr std::int64_t kMoment = 1;  // second: of many starts at once one writes it
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

// --- space ---

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

}  // namespace spc
