// Files of the shared store: leases, blobs, converted layers, and eviction.

#include "share/shared_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "protocol/fuse.hpp"

namespace spc {

// --- lease ---

namespace {

constexpr std::chrono::seconds kPulse{1}, kStale{5};
constexpr std::size_t kLongest = 1024;

/// Returns a unique identifier of the holder.
std::string new_token() {
  char host[64] = {};
  ::gethostname(host, sizeof host - 1);
  return formatted("{} {} {}", host, ::getpid(), random_text());
}

/// Reads the lease. Opens it each time, because a network file system then asks its server.
std::string content_of(int directory, const std::string& name) {
  const UniqueFd file(
      ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  auto text = file ? read_file(file.get(), kLongest) : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

/// Writes the lease and returns whether it is in place. Additional `flags`: O_EXCL, or 0 to rewrite
/// an own lease.
Result<void> write_lease(int directory, const std::string& name, int flags,
                         const std::string& text) {
  const UniqueFd file(::openat(directory, name.c_str(),
                               O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600));
  if (!file) return Error::from_errno(errno, "open lease " + in_quotes(name));
  auto written = write_all(file.get(), text);
  if (written && ::fdatasync(file.get()) != 0)
    written = Error::from_errno(errno, "write lease " + in_quotes(name));
  if (!written && (flags & O_EXCL) != 0) ::unlinkat(directory, name.c_str(), 0);
  return written;
}

}  // namespace

std::string random_text() {
  std::random_device device;
  return formatted("{:08x}{:08x}", device(), device());
}

Lease::~Lease() {
  // If this holder was presumed dead, the lease may have another holder. In a race this removes the
  // new holder's lease, which costs a second copy.
  if (directory_ >= 0 && content_of(directory_, name_).starts_with(token_))
    ::unlinkat(directory_, name_.c_str(), 0);
}

void Lease::beat() {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + kPulse;
  // The lease may be gone or have a new holder. The text never becomes shorter than the one it
  // replaces.
  if (content_of(directory_, name_).starts_with(token_)) {
    (void)write_lease(directory_, name_, 0, formatted("{} {:020} {}", token_, ++count_, note_));
  }
}

void Lease::tell(std::string note) {
  note_ = std::move(note);
  next_ = Clock::now();
  beat();
}

bool WatchedLease::is_stale(std::string content) {
  const auto now = Clock::now();
  if (content_ != content) {
    content_ = std::move(content);
    since_ = now;
  }
  return now - since_ >= kStale;
}

std::string WatchedLease::note() const {
  std::size_t at = 0;
  for (int field = 0; field < 4 && at != std::string::npos; ++field)
    at = content_ ? content_->find(' ', at + 1) : std::string::npos;
  return at == std::string::npos ? std::string() : content_->substr(at + 1);
}

Result<std::optional<Lease>> take_lease(int directory, const std::string& name,
                                        WatchedLease& others) {
  const std::string token = new_token();
  for (int tries = 0; tries < 2; ++tries) {
    const auto made =
        write_lease(directory, name, O_CREAT | O_EXCL, formatted("{} {:020}", token, 0));
    if (made) return std::optional(Lease(directory, name, token));
    if (made.error().sys_errno() != EEXIST) return made.error();
    if (tries > 0 || !others.is_stale(content_of(directory, name))) break;
    // Rename the stale lease first: of several processes that see it, only one succeeds.
    const std::string away = formatted("{}.{}", name, token.substr(token.rfind(' ') + 1));
    if (::renameat(directory, name.c_str(), directory, away.c_str()) == 0)
      ::unlinkat(directory, away.c_str(), 0);
  }
  return std::optional<Lease>();
}

// --- shared store ---

namespace {

constexpr char kPlaceName[] = "name";  // in delivered/<place>/

UniqueFd open_below(int parent, const std::string& name, int flags) {
  return UniqueFd(::openat(parent, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0600));
}

/// Opens a directory. Creates a missing one, which only the calling user can enter.
Result<UniqueFd> make_directory(int parent, const std::string& name) {
  UniqueFd made = open_below(parent, name, O_RDONLY | O_DIRECTORY);
  if (made) return made;
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, "make directory " + in_quotes(name));
  made = open_below(parent, name, O_RDONLY | O_DIRECTORY);
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

/// Makes the client ask its server for the directory's content: NFS may cache missing entries for
/// half a minute.
void refresh(int directory) {
  struct statx now {};
  ::statx(directory, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME, &now);
}

std::string key_of(std::string_view place) { return Sha256::of(place).hex(); }

/// Checks a name from a lease's note, which is untrusted.
bool is_name_for(const Digest& blob, const std::string& name) {
  return name.starts_with(blob.hex() + ".") && name.find('/') == std::string::npos;
}

std::string lease_name(const Digest& blob, std::string_view place) {
  return blob.hex() + "." + key_of(place).substr(0, 16);
}

/// Checks the file's type and length.
bool is_file_of(int file, std::uint64_t size) {
  struct stat status {};
  return ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) == size;
}

}  // namespace

Result<SharedStore> SharedStore::open(const std::string& directory, std::uint64_t max_size,
                                      std::int64_t grace) {
  const auto opened = [&]() -> Result<SharedStore> {
    const UniqueFd top(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!top) return Error::from_errno(errno, "open it");
    SPC_TRY(check_owner(top.get()));
    SharedStore store;
    store.directory_ = directory;
    store.max_size_ = max_size;
    store.grace_ = grace;
    const UniqueFd blobs = SPC_TRY(make_directory(top.get(), "blobs"));
    store.blobs_ = SPC_TRY(make_directory(blobs.get(), "sha256"));
    store.layers_ = SPC_TRY(make_directory(top.get(), "layers"));
    store.images_ = SPC_TRY(make_directory(top.get(), "images"));
    store.delivered_ = SPC_TRY(make_directory(top.get(), "delivered"));
    store.leases_ = SPC_TRY(make_directory(top.get(), "leases"));
    store.temporary_ = SPC_TRY(make_directory(top.get(), "tmp"));
    store.trash_ = SPC_TRY(make_directory(top.get(), "trash"));
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
  refresh(blobs_.get());  // the next lookup is there
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
  // Seconds by this node's clock. If the holder is alive after all, its own rename fails, which
  // does no harm.
  constexpr std::int64_t kSilence = 60;
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
  // The file's time is that of the file system's clock.
  if (::fstat(made.file(), &status) == 0) make_room(size, status.st_mtim.tv_sec);
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

// --- converted layers ---

// Converted layers: one file each, followed by the SHA-256 of its content.

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

std::string path_of(const SharedStore::Layer& layer) { return layer.form + "/" + layer.name.hex(); }

/// Copies from the file's beginning. Returns the digest of the bytes.
Result<Digest> copy_bytes(int from, int to, std::uint64_t size) {
  std::vector<std::byte> piece(kPieceBytes);
  Sha256 hash;
  for (std::uint64_t at = 0; at < size; at += piece.size()) {
    const auto bytes =
        std::span(piece).first(static_cast<std::size_t>(std::min(kPieceBytes, size - at)));
    SPC_TRY(read_exactly(from, at, bytes, "read it"));
    hash.update(bytes);
    SPC_TRY(write_all(to, bytes));
  }
  return hash.finish();
}

}  // namespace

bool SharedStore::has_layer(const Layer& layer) const {
  refresh(layers_.get());
  const UniqueFd form(
      ::openat(layers_.get(), layer.form.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!form) return false;
  refresh(form.get());
  return ::faccessat(form.get(), layer.name.hex().c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<bool> SharedStore::copy_layer(const Layer& layer, int to) const {
  if (!has_delivered(layer.place, layer.blob)) return false;
  const UniqueFd file(::openat(layers_.get(), path_of(layer).c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  Digest wanted;
  const bool has_sum =
      size > wanted.bytes.size() && ::pread(file.get(), wanted.bytes.data(), wanted.bytes.size(),
                                            static_cast<off_t>(size - wanted.bytes.size())) ==
                                        static_cast<ssize_t>(wanted.bytes.size());
  const std::string what =
      formatted("layer {} of shared store {}", in_quotes(layer.name.str()), in_quotes(directory_));
  if (has_sum && SPC_TRY_DURING("copy " + what,
                                copy_bytes(file.get(), to, size - wanted.bytes.size())) == wanted) {
    ::futimens(file.get(), nullptr);
    return true;
  }
  remove_layer(layer);
  return Error(ErrorKind::corrupt, what + ": was damaged, and is removed");
}

Result<void> SharedStore::keep_layer(const Layer& layer, int from) const {
  if (::faccessat(layers_.get(), path_of(layer).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) return {};
  struct stat status {};
  if (::fstat(from, &status) != 0) return Error::from_errno(errno, "look at a layer");
  if (::mkdirat(layers_.get(), layer.form.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, "make a directory in shared store " + in_quotes(directory_));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  // The copy is an ordinary file until it is published.
  auto copy = SPC_TRY(new_blob(layer.name, size + sizeof(Digest)));
  const std::string step = "write a layer into shared store " + in_quotes(directory_);
  const Digest sum = SPC_TRY_DURING(step, copy_bytes(from, copy.file(), size));
  SPC_TRY_DURING(step, write_all(copy.file(), std::as_bytes(std::span(sum.bytes))));
  if (::fsync(copy.file()) != 0 || ::renameat(temporary_.get(), copy.name().c_str(), layers_.get(),
                                              path_of(layer).c_str()) != 0) {
    return Error::from_errno(errno, step);
  }
  return {};
}

void SharedStore::remove_layer(const Layer& layer) const {
  remove_file(layers_.get(), path_of(layer));
}

// --- images in place ---

namespace {

constexpr char kHashes[] = ".hashes";  // appended to the name of a layer's file
constexpr std::size_t kMostNote = 1 << 20;
constexpr std::string_view kNoteKind = "spank-container image in place 1";
constexpr std::string_view kSignatureKey = "\nsignature ";

/// Returns the list of hashes of a file.
Result<std::string> hashes_of(int file, std::uint64_t size) {
  std::string hashes;
  std::vector<std::byte> piece(kVerifiedChunk);
  for (std::uint64_t at = 0; at < size; at += kVerifiedChunk) {
    const auto chunk =
        std::span(piece).first(static_cast<std::size_t>(std::min(kVerifiedChunk, size - at)));
    SPC_TRY(read_exactly(file, at, chunk, "read it"));
    Sha256 hash;
    hash.update(chunk);
    const Digest digest = hash.finish();
    hashes.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  }
  return hashes;
}

std::string note_name(const Digest& manifest, std::string_view place, std::string_view form) {
  return formatted("{}.{}.{}", manifest.hex(), key_of(place).substr(0, 16), form);
}

}  // namespace

std::string ImageInPlace::serialize() const {
  std::string text =
      formatted("{}\nmanifest {}\nplace {}\nform {}\n", kNoteKind, manifest.str(), place, form);
  for (const Layer& layer : layers)
    text += formatted("layer {} {} {}\n", layer.name.str(), layer.bytes, layer.hashes.str());
  return text + "facts " + base64(facts);
}

Result<ImageInPlace> ImageInPlace::parse(std::string_view text) {
  ImageInPlace image;
  bool is_right = text.starts_with(kNoteKind);
  for (const std::string_view line : split(text, '\n')) {
    const auto words = split(line, ' ');
    const auto digest_at = [&](std::size_t i) {
      const auto digest = Digest::parse(std::string(words[i]));
      is_right = is_right && digest;
      return digest ? *digest : Digest();
    };
    if (words[0] == "layer" && words.size() == 4) {
      Layer layer{.name = digest_at(1), .hashes = digest_at(3)};
      is_right = is_right && read_number(words[2], layer.bytes) && layer.bytes > 0 &&
                 layer.bytes <= kMostVerified;
      image.layers.push_back(layer);
    } else if (words[0] == "manifest" && words.size() == 2) {
      image.manifest = digest_at(1);
    } else if (words[0] == "place" && words.size() == 2) {
      image.place = words[1];
    } else if (words[0] == "form" && words.size() == 2) {
      image.form = words[1];
    } else if (words[0] == "facts" && words.size() == 2) {
      image.facts = from_base64(words[1]).value_or("");
    } else if (line != kNoteKind) {
      is_right = false;
    }
  }
  if (is_right && !image.layers.empty()) return image;
  return Error(ErrorKind::corrupt, "the note of an image in the shared store is corrupt");
}

Result<ImageInPlace::Layer> SharedStore::place_layer(const Layer& layer, int from) const {
  const std::string path = path_of(layer), list = path + kHashes;
  const std::string step = "write the hashes of a layer into shared store " + in_quotes(directory_);
  struct stat status {};
  if (::fstat(from, &status) != 0) return Error::from_errno(errno, step);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  // The hashes are those of this node's own file: another node may have written the one there.
  const std::string hashes = SPC_TRY_DURING(step, hashes_of(from, size));
  const ImageInPlace::Layer placed{.name = layer.name, .bytes = size, .hashes = Sha256::of(hashes)};
  if (open_layer({.form = layer.form}, placed)) return placed;
  remove_layer(layer);
  SPC_TRY(keep_layer(layer, from));
  auto file = SPC_TRY(new_blob(layer.name, hashes.size()));
  SPC_TRY_DURING(step, write_all(file.file(), hashes));
  if (::fsync(file.file()) != 0 ||
      ::renameat(temporary_.get(), file.name().c_str(), layers_.get(), list.c_str()) != 0)
    return Error::from_errno(errno, step);
  return placed;
}

Result<void> SharedStore::note_image(const ImageInPlace& image, std::string_view signature) const {
  std::string text = image.serialize();
  if (!signature.empty()) text.append(kSignatureKey).append(base64(signature));
  const std::string step = "write the note of an image into shared store " + in_quotes(directory_);
  auto file = SPC_TRY(new_blob(image.manifest, text.size()));
  SPC_TRY_DURING(step, write_all(file.file(), text));
  if (::fsync(file.file()) != 0 ||
      ::renameat(temporary_.get(), file.name().c_str(), images_.get(),
                 note_name(image.manifest, image.place, image.form).c_str()) != 0)
    return Error::from_errno(errno, step);
  return {};
}

std::optional<SharedStore::ImageNote> SharedStore::image_note(const Digest& manifest,
                                                              std::string_view place,
                                                              std::string_view form) const {
  refresh(images_.get());
  const UniqueFd file =
      open_below(images_.get(), note_name(manifest, place, form), O_RDONLY | O_NONBLOCK);
  auto text = file ? read_file(file.get(), kMostNote) : Result<std::string>(std::string());
  if (!text || text->empty()) return std::nullopt;
  ::futimens(file.get(), nullptr);
  const std::size_t end = text->rfind(kSignatureKey);
  if (end == std::string::npos) return ImageNote{.text = *std::move(text), .signature = {}};
  return ImageNote{.text = text->substr(0, end),
                   .signature = from_base64(text->substr(end + kSignatureKey.size())).value_or("")};
}

Result<SharedStore::OpenLayer> SharedStore::open_layer(const ImageInPlace& image,
                                                       const ImageInPlace::Layer& layer) const {
  const std::string path = path_of({image.form, layer.name, {}, {}});
  OpenLayer opened{.file = open_below(layers_.get(), path, O_RDONLY | O_NONBLOCK),
                   .hashes = open_below(layers_.get(), path + kHashes, O_RDONLY | O_NONBLOCK)};
  const std::uint64_t list = (layer.bytes + kVerifiedChunk - 1) / kVerifiedChunk * sizeof(Digest);
  const bool is_there = opened.file && opened.hashes && is_file_of(opened.hashes.get(), list) &&
                        is_file_of(opened.file.get(), layer.bytes + sizeof(Digest));
  const auto hashes = is_there ? read_file(opened.hashes.get(), list) : Result(std::string());
  if (!is_there || !hashes || Sha256::of(*hashes) != layer.hashes)
    return Error(ErrorKind::not_found,
                 formatted("layer {} is not there, or was changed", in_quotes(layer.name.str())));
  ::futimens(opened.file.get(), nullptr);
  ::futimens(opened.hashes.get(), nullptr);
  return opened;
}

// --- eviction ---

// Inventory and eviction of a shared store.

namespace {

// A lease is rewritten each second: one that is ten minutes old belongs to a dead node, even if the
// clocks of nodes differ and the file has a node's time. A file in tmp/ may stay unchanged while
// its node converts. The note of an image in place is marked at each start.
constexpr std::int64_t kLeaseAge = 600, kFileAge = 24 * 3600, kNoteAge = 90LL * 24 * 3600;
constexpr std::size_t kLongestPlace = 1024;

UniqueFd opened_again(int directory, const char* name = ".") {
  return UniqueFd(::openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::optional<struct stat> file_at(const DirectoryReader& files) {
  struct stat status {};
  const bool is_file =
      ::fstatat(files.descriptor(), files.c_name(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(status.st_mode);
  return is_file ? std::optional(status) : std::nullopt;
}

std::optional<Digest> digest_of(std::string_view hexadecimal) {
  const auto digest = Digest::parse("sha256:" + std::string(hexadecimal));
  return digest ? std::optional(*digest) : std::nullopt;
}

}  // namespace

/// A file whose size is part of the total that `max_size` limits.
struct SharedStore::File {
  int directory = -1;
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_at = 0;
};

void SharedStore::add_files(std::vector<File>& all, int directory, const std::string& form) {
  for (DirectoryReader files(opened_again(directory, form.c_str())); files.next();) {
    const auto status = file_at(files);
    if (status)
      all.push_back({directory, form + "/" + std::string(files.name()),
                     static_cast<std::uint64_t>(status->st_size), status->st_mtim.tv_sec});
  }
  std::ranges::sort(all, {}, &File::used_at);
}

std::vector<SharedStore::File> SharedStore::files() const {
  std::vector<File> all;
  add_files(all, blobs_.get(), ".");
  for (DirectoryReader forms(opened_again(layers_.get())); forms.next();)
    add_files(all, layers_.get(), std::string(forms.name()));
  return all;
}

/// Removes the oldest files of the trash while it is larger than max_size: users fill it by pulls.
void SharedStore::limit_trash() const {
  std::vector<File> all;
  add_files(all, trash_.get(), ".");
  std::uint64_t total = 0;
  for (const File& file : all) total += file.bytes;
  for (const File& file : all) {
    if (total <= max_size_) break;
    if (::unlinkat(file.directory, file.path.c_str(), 0) == 0) total -= file.bytes;
  }
}

std::vector<SharedStore::Blob> SharedStore::blobs() const {
  std::vector<Blob> blobs;
  for (DirectoryReader files(opened_again(blobs_.get())); files.next();) {
    const auto digest = digest_of(files.name());
    const auto status = digest ? file_at(files) : std::nullopt;
    if (status)
      blobs.push_back(
          {*digest, static_cast<std::uint64_t>(status->st_size), status->st_mtim.tv_sec});
  }
  std::ranges::sort(blobs, {}, &Blob::used_at);
  return blobs;
}

std::map<Digest, std::vector<std::string>> SharedStore::places() const {
  std::map<Digest, std::vector<std::string>> places;
  for (DirectoryReader all(opened_again(delivered_.get())); all.next();) {
    DirectoryReader notes(opened_again(all.descriptor(), all.c_name()));
    const UniqueFd file(
        ::openat(notes.descriptor(), "name", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const auto name =
        file ? read_file(file.get(), kLongestPlace) : Result<std::string>(std::string());
    while (name && !name->empty() && notes.next()) {
      if (const auto digest = digest_of(notes.name())) places[*digest].push_back(*name);
    }
  }
  return places;
}

/// Returns the time by the clock that sets file times there.
std::int64_t SharedStore::time_there() const {
  const std::string name = "clock." + random_text();
  const UniqueFd file(::openat(temporary_.get(), name.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat status {};
  const bool is_known = file && ::fstat(file.get(), &status) == 0;
  if (file) ::unlinkat(temporary_.get(), name.c_str(), 0);
  return is_known ? status.st_mtim.tv_sec : std::time(nullptr);
}

std::size_t SharedStore::remove_strays(std::int64_t now, bool dry) const {
  std::size_t removed = 0;
  for (const auto& [directory, age] :
       {std::pair(temporary_.get(), kFileAge), std::pair(leases_.get(), kLeaseAge),
        std::pair(images_.get(), kNoteAge), std::pair(trash_.get(), grace_)}) {
    for (DirectoryReader files(opened_again(directory)); files.next();) {
      const auto status = file_at(files);
      if (!status || status->st_mtim.tv_sec >= now - age) continue;
      if (dry || ::unlinkat(files.descriptor(), files.c_name(), 0) == 0) ++removed;
    }
  }
  return removed;
}

/// Removes a file, which a node may have open. A layer that nodes use in place first goes to the
/// trash: an NFS server forgets a removed file.
bool SharedStore::remove_file(int directory, const std::string& path) const {
  if (grace_ == 0 || directory != layers_.get()) return ::unlinkat(directory, path.c_str(), 0) == 0;
  const std::string name = path.substr(path.find('/') + 1) + "." + random_text();
  ::utimensat(directory, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return ::renameat(directory, path.c_str(), trash_.get(), name.c_str()) == 0;
}

SharedStore::Removed SharedStore::evict(std::uint64_t needed, std::int64_t used_before,
                                        bool dry) const {
  const auto files = this->files();
  std::uint64_t total = needed;
  for (const File& file : files) total += file.bytes;
  Removed removed;
  for (const File& file : files) {
    if ((max_size_ == 0 || total <= max_size_) && file.used_at >= used_before) break;
    if (!dry && !remove_file(file.directory, file.path)) continue;
    total -= file.bytes;
    removed.bytes += file.bytes;
    ++removed.files;
    if (dry || file.directory != blobs_.get()) continue;
    for (DirectoryReader places(opened_again(delivered_.get())); places.next();) {
      ::unlinkat(places.descriptor(), (std::string(places.name()) + "/" + file.path).c_str(), 0);
    }
  }
  if (!dry && max_size_ != 0) limit_trash();
  return removed;
}

SharedStore::Removed SharedStore::clean(std::int64_t unused_for, bool dry) const {
  const std::int64_t now = time_there();
  Removed removed = evict(0, unused_for == 0 ? 0 : now - unused_for, dry);
  removed.strays = remove_strays(now, dry);
  return removed;
}

void SharedStore::make_room(std::uint64_t needed, std::int64_t now) const {
  if (!std::exchange(has_removed_strays_, true)) (void)remove_strays(now, false);
  if (max_size_ != 0) (void)evict(needed, 0, false);
}

}  // namespace spc
