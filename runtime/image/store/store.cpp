#include "image/store/store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/file.hpp"
#include "base/sha256.hpp"
#include "image/store/store_files.hpp"
#include "protocol/store_layout.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxRecord = 24 << 20;
constexpr std::size_t kMaxOriginsFile = 1 << 20;
constexpr std::size_t kMaxDeliveries = 1 << 20;
constexpr std::size_t kMaxSignaturesFile = 4 << 20;

/// A byte of the file `locks` for each layer: 62 bits of its name. Two layers on one byte would only wait for each other.
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
std::int64_t pulse_offset(const Digest& layer) { return (std::int64_t{3} << 61) + (lock_offset(layer) >> 1); }

struct flock byte_at(std::int64_t offset, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = offset;
  range.l_len = 1;
  return range;
}

/// A line of images/delivered/<layer>. Both signs: a line that was cut off by a full disk must not be another origin's.
std::string delivery_line(const std::string& origin) { return "=" + origin + "=\n"; }

/// A file that was damaged by a crash is as good as none.
std::optional<ImageStore::Ref> parse_ref(const std::optional<std::string>& file) {
  if (!file) return std::nullopt;
  const std::string& text = *file;
  constexpr std::size_t kDigest = 7 + 64;
  ImageStore::Ref ref;
  const auto digest = Digest::parse(std::string_view(text).substr(0, kDigest));
  if (!digest || text.size() < kDigest + 2 || text[kDigest] != ' ') return std::nullopt;
  ref.manifest = *digest;
  const auto [end, error] = std::from_chars(text.data() + kDigest + 1, text.data() + text.size(), ref.asked_at);
  if (error != std::errc{} || end == text.data() + text.size() || *end != '\n') return std::nullopt;
  return ref;
}

constexpr std::size_t kMaxRef = 4096;

std::string text_of(const ImageStore::Ref& ref) { return ref.manifest.str() + " " + std::to_string(ref.asked_at) + "\n"; }

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

StoreLock::~StoreLock() {
  if (file_ < 0) return;
  struct flock range = byte_at(offset_, F_UNLCK);
  ::fcntl(file_, F_OFD_SETLK, &range);
}

Result<ImageStore> ImageStore::open(int directory) {
  std::array<char, 4096> path{};
  const std::string self = "/proc/self/fd/" + std::to_string(directory);
  const ssize_t length = ::readlink(self.c_str(), path.data(), path.size());
  const std::string name =
      length > 0 && path[0] == '/' ? std::string(path.data(), static_cast<std::size_t>(length)) : SPC_STORE_DIR;
  const auto open_in = [&](const char* part, int flags) -> Result<UniqueFd> {
    UniqueFd fd(::openat(directory, part, flags | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) {
      const int err = errno;
      return std::move(Error::from_errno(err, "open " + in_quotes(name + "/" + part)))
          .hint("the store is not set up for the user spank-container");
    }
    return fd;
  };
  auto images = SPC_TRY(open_in(store_layout::kImages, O_RDONLY | O_DIRECTORY));
  auto refs = SPC_TRY(open_in(store_layout::kRefs, O_RDONLY | O_DIRECTORY));
  auto locks = open_in("locks", O_RDWR | O_CREAT);
  // What is in a read-only store can be used all the same: only who brings something takes a lock.
  if (!locks && locks.error().sys_errno() == EROFS) locks = open_in("locks", O_RDONLY);
  if (!locks) return std::move(locks).error();
  return ImageStore(directory, name, std::move(images), std::move(refs), *std::move(locks));
}

// --- layers ---

bool ImageStore::has_layer(const Digest& name) const {
  struct stat status {};
  return ::fstatat(directory_, store_layout::layer_path(name).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

UniqueFd ImageStore::hold_layer(const Digest& name) const {
  UniqueFd file(::openat(directory_, store_layout::layer_path(name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // Whoever takes it away has the exclusive lock for the moment in which it loses its name.
  if (!file || ::flock(file.get(), LOCK_SH | LOCK_NB) != 0) return {};
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || status.st_nlink == 0) return {};
  return file;
}

bool ImageStore::is_layer_in_use(const Digest& name) const {
  const UniqueFd file(
      ::openat(directory_, store_layout::layer_path(name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

Result<std::optional<StoreLock>> ImageStore::try_lock_byte(std::int64_t offset) const {
  struct flock range = byte_at(offset, F_WRLCK);
  if (::fcntl(locks_.get(), F_OFD_SETLK, &range) == 0) return std::optional(StoreLock(locks_.get(), offset));
  if (errno == EAGAIN || errno == EACCES) return std::optional<StoreLock>();
  return Error::from_errno(errno == EBADF ? EROFS : errno, "lock image store " + in_quotes(path_));
}

Result<std::optional<StoreLock>> ImageStore::try_lock(const Digest& layer) const { return try_lock_byte(lock_offset(layer)); }

void ImageStore::pulse(const Digest& layer, bool yes) const {
  struct flock range = byte_at(pulse_offset(layer), yes ? F_WRLCK : F_UNLCK);
  ::fcntl(locks_.get(), F_OFD_SETLK, &range);
}

bool ImageStore::pulse_of_others(const Digest& layer) const {
  struct flock range = byte_at(pulse_offset(layer), F_WRLCK);
  return ::fcntl(locks_.get(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

Result<std::optional<StoreLock>> ImageStore::try_slot(std::uint32_t uid, std::uint32_t slots) const {
  for (std::uint32_t slot = 0; slot < slots && slot < kMaxSlots; ++slot) {
    auto lock = SPC_TRY(try_lock_byte(slot_offset(uid, slot)));
    if (lock) return lock;
  }
  return std::optional<StoreLock>();
}

bool ImageStore::was_delivered(const Digest& layer, const std::string& origin) const {
  const auto lines = read_below(images_.get(), "delivered", layer.hex(), kMaxDeliveries);
  return lines && *lines && ("\n" + **lines).find("\n" + delivery_line(origin)) != std::string::npos;
}

Result<void> ImageStore::note_delivery(const Digest& layer, const std::string& origin) const {
  if (was_delivered(layer, origin)) return {};
  const std::string step = "record the origin of a layer in the image store";
  const auto directory = SPC_TRY(open_private_directory(images_.get(), "delivered"));
  const UniqueFd file(
      ::openat(directory.get(), layer.hex().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
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
  const auto bytes = SPC_TRY(read_named(images_.get(), manifest.hex(), kMaxRecord));
  if (!bytes) return std::optional<ImageRecord>();
  auto record = parse_image_record(*bytes);
  if (!record || record->layer_format != kLayerFormat) return std::optional<ImageRecord>();
  return std::optional(*std::move(record));
}

Result<void> ImageStore::write_image(const Digest& manifest, const ImageRecord& record) const {
  return write_named(images_.get(), manifest.hex(), serialize(record), Durable::yes);
}

Result<ImageOrigins> ImageStore::origins(const Digest& manifest) const {
  const auto bytes = SPC_TRY(read_below(images_.get(), store_layout::kOrigins, manifest.hex(), kMaxOriginsFile));
  return ImageOrigins::parse(bytes.value_or(""));
}

Result<void> ImageStore::write_origins(const Digest& manifest, const ImageOrigins& origins) const {
  const auto directory = SPC_TRY(open_private_directory(images_.get(), store_layout::kOrigins));
  return write_named(directory.get(), manifest.hex(), origins.serialize(), Durable::no);
}

Result<std::string> ImageStore::signatures(const Digest& manifest) const {
  return SPC_TRY(read_below(images_.get(), store_layout::kSignatures, manifest.hex(), kMaxSignaturesFile)).value_or("");
}

Result<void> ImageStore::write_signatures(const Digest& manifest, std::string_view records) const {
  const auto directory = SPC_TRY(open_private_directory(images_.get(), store_layout::kSignatures));
  return write_named(directory.get(), manifest.hex(), records, Durable::no);
}

Result<void> ImageStore::remove_image(const Digest& manifest) const {
  SPC_TRY(remove_named(images_.get(), manifest.hex()));
  for (const char* about : {store_layout::kOrigins, store_layout::kSignatures}) {
    SPC_TRY(remove_named(images_.get(), std::string(about) + "/" + manifest.hex()));
  }
  return {};
}

void ImageStore::touch_image(const Digest& manifest) const {
  const timespec times[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  ::utimensat(images_.get(), manifest.hex().c_str(), times, AT_SYMLINK_NOFOLLOW);
}

// --- references ---

void ImageStore::touch_ref(const std::string& name) const {
  ::utimensat(refs_.get(), name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

Result<std::optional<ImageStore::Ref>> ImageStore::ref(const std::string& name) const {
  return parse_ref(SPC_TRY(read_named(refs_.get(), name, kMaxRef)));
}

Result<void> ImageStore::write_ref(const std::string& name, const Ref& ref) const {
  return write_named(refs_.get(), name, text_of(ref), Durable::no);
}

Result<void> ImageStore::remove_ref(const std::string& name) const { return remove_named(refs_.get(), name); }

Result<std::optional<ImageStore::Ref>> ImageStore::grant(std::uint32_t uid, const std::string& name) const {
  return parse_ref(
      SPC_TRY(read_below(images_.get(), std::string(store_layout::kGrants) + "/" + std::to_string(uid), name, kMaxRef)));
}

Result<void> ImageStore::write_grant(std::uint32_t uid, const std::string& name, const Ref& ref) const {
  const auto grants = SPC_TRY(open_private_directory(images_.get(), store_layout::kGrants));
  const auto of_user = SPC_TRY(open_private_directory(grants.get(), std::to_string(uid)));
  return write_named(of_user.get(), name, text_of(ref), Durable::no);
}

Result<void> ImageStore::forget_grants(const std::set<Digest>& manifests) const {
  constexpr int kHow = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  const UniqueFd grants(::openat(images_.get(), store_layout::kGrants, kHow));
  if (!grants && errno == ENOENT) return {};
  if (!grants) return Error::from_errno(errno, "open the grants in the image store");
  const auto users = SPC_TRY(names_in(grants.get()));
  for (const std::string& user : users) {
    const UniqueFd of_user(::openat(grants.get(), user.c_str(), kHow));
    if (!of_user) continue;
    const auto names = SPC_TRY(names_in(of_user.get()));
    for (const std::string& name : names) {
      const auto ref = parse_ref(SPC_TRY(read_named(of_user.get(), name, kMaxRef)));
      if (ref && manifests.contains(ref->manifest)) SPC_TRY(remove_named(of_user.get(), name));
    }
  }
  return {};
}

// --- space ---

Result<StoreSpace> ImageStore::space() const {
  struct statvfs status {};
  if (::fstatvfs(directory_, &status) != 0) return Error::from_errno(errno, "get the free space of the image store");
  const std::uint64_t unit = status.f_frsize;
  return StoreSpace{.total = status.f_blocks * unit,
                    .used = (status.f_blocks - status.f_bfree) * unit,
                    .free = status.f_bavail * unit,
                    .free_inodes = status.f_favail};
}

}  // namespace spc
