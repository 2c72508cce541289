#include "export/archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/kernel.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- tar member ---

namespace {

struct Field {
  std::size_t offset, size;
};
constexpr Field kMode{100, 8}, kUid{108, 8}, kGid{116, 8}, kSize{124, 12}, kTime{136, 12},
    kSum{148, 8};
constexpr std::size_t kType = 156, kMagic = 257;
constexpr std::uint64_t kLargestOctal = (std::uint64_t{1} << 33) - 1;

void put_octal(std::string& block, Field field, std::uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", static_cast<int>(field.size - 1),
                static_cast<unsigned long long>(number));
  block.replace(field.offset, field.size - 1, text);
}

}  // namespace

std::string tar_header(const std::string& path, std::uint64_t size) {
  assert(path.size() < kMode.offset);
  std::string block(kTarHeaderBytes, '\0');
  block.replace(0, path.size(), path);
  put_octal(block, kMode, 0644);
  for (const Field field : {kUid, kGid, kTime}) put_octal(block, field, 0);
  if (size <= kLargestOctal) {
    put_octal(block, kSize, size);
  } else {
    block[kSize.offset] = '\x80';
    for (std::size_t i = 0; i < 8; ++i)
      block[kSize.offset + kSize.size - 1 - i] = static_cast<char>(size >> (8 * i));
  }
  block[kType] = '0';
  block.replace(kMagic, 8,
                std::string_view(size <= kLargestOctal ? "ustar\00000" : "ustar  \0", 8));
  block.replace(kSum.offset, kSum.size, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  block.replace(kSum.offset, 7, std::string_view(text, 7));
  return block;
}

std::string tar_padding(std::uint64_t size) {
  const auto rest = static_cast<std::size_t>(size % kTarHeaderBytes);
  return std::string(rest == 0 ? 0 : kTarHeaderBytes - rest, '\0');
}

// --- zstd sink ---

namespace {

constexpr int kLevel = 3;
constexpr unsigned kMostWorkers = 8;

}  // namespace

void ZstdSink::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

/// Uses at least one worker: without workers the output differs.
ZstdSink::ZstdSink(const ByteSink& to)
    : to_(to), context_(ZSTD_createCCtx()), out_(ZSTD_CStreamOutSize()) {
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_nbWorkers,
                         static_cast<int>(std::min(usable_processors(), kMostWorkers)));
}

Result<void> ZstdSink::compress(const void* bytes, std::size_t size, bool is_end) {
  ZSTD_inBuffer in{bytes, size, 0};
  for (;;) {
    ZSTD_outBuffer out{out_.data(), out_.size(), 0};
    const std::size_t left =
        ZSTD_compressStream2(context_.get(), &out, &in, is_end ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0)
      return Error(ErrorKind::system,
                   std::string("compress the layer: ") + ZSTD_getErrorName(left));
    if (out.pos > 0) SPC_TRY(to_(out_.data(), out.pos));
    if (is_end ? left == 0 : in.pos == in.size) return {};
  }
}

// --- image tree ---

namespace {

constexpr int kMaxDepth = 200;

Result<void> walk(UniqueFd directory, const std::string& path, int depth,
                  const std::function<Result<void>(const TreeEntry&)>& visit) {
  if (depth > kMaxDepth)
    return Error(ErrorKind::corrupt, "the image's directories are nested too deeply");
  DirectoryReader entries(std::move(directory));
  const int here = entries.descriptor();
  std::vector<std::string> directories;
  std::vector<std::string> names;
  while (entries.next()) names.emplace_back(entries.name());
  if (entries.error() != 0) {
    return Error::from_errno(entries.error(),
                             formatted("read directory {} of the image", in_quotes("/" + path)));
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    TreeEntry found{.path = path + name, .directory = here, .name = name.c_str(), .status = {}};
    if (::fstatat(here, name.c_str(), &found.status, AT_SYMLINK_NOFOLLOW) != 0) {
      return Error::from_errno(errno,
                               formatted("look at {} in the image", in_quotes("/" + found.path)));
    }
    SPC_TRY(visit(found));
    if (S_ISDIR(found.status.st_mode)) directories.push_back(name);
  }
  for (const std::string& name : directories) {
    UniqueFd next(::openat(here, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next)
      return Error::from_errno(
          errno, formatted("open directory {} of the image", in_quotes("/" + path + name)));
    SPC_TRY(walk(std::move(next), path + name + "/", depth + 1, visit));
  }
  return {};
}

}  // namespace

Result<UniqueFd> open_in_image(int root, const std::string& path) {
  UniqueFd file = open_resolved(root, path.c_str(), O_RDONLY | O_NONBLOCK,
                                RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
  if (!file) return Error::from_errno(errno, formatted("open {} in the image", in_quotes(path)));
  return file;
}

std::string text_in_image(int root, const std::string& path, std::size_t limit) {
  const auto file = open_in_image(root, path);
  struct stat status {};
  if (!file || ::fstat(file->get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string text(std::min(limit, static_cast<std::size_t>(status.st_size)), '\0');
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t count = ::read(file->get(), text.data() + got, text.size() - got);
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  text.resize(got);
  return text;
}

Result<void> walk_image(int root, const std::function<Result<void>(const TreeEntry&)>& visit) {
  UniqueFd directory(::openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open the image's root");
  return walk(std::move(directory), "", 0, visit);
}

// --- tree snapshot ---

namespace {

/// Returns a hash of the metadata. It need not resist attacks: a user who can choose these numbers
/// can change the file itself.
std::uint64_t mark_of(const struct stat& status) {
  const bool is_directory = S_ISDIR(status.st_mode);
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t told[] = {number(status.st_mode),         number(status.st_dev),
                                number(status.st_ino),          number(status.st_size),
                                number(status.st_rdev),         number(status.st_mtim.tv_sec),
                                number(status.st_mtim.tv_nsec), number(status.st_ctim.tv_sec),
                                number(status.st_ctim.tv_nsec)};
  const std::size_t counted = is_directory ? sizeof told[0] : sizeof told;
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(told), counted});
}

}  // namespace

Result<KnownTree> KnownTree::read(int root) {
  KnownTree known;
  SPC_TRY(walk_image(root, [&](const TreeEntry& entry) -> Result<void> {
    known.marks_.emplace(entry.path, mark_of(entry.status));
    return {};
  }));
  return known;
}

bool KnownTree::is_unchanged(const TreeEntry& entry, Met& met) const {
  if (S_ISDIR(entry.status.st_mode)) met.directories.insert(entry.path);
  const auto found = marks_.find(entry.path);
  if (found == marks_.end()) return false;
  met.paths.insert(entry.path);
  return found->second == mark_of(entry.status);
}

std::vector<std::string> KnownTree::gone(const Met& met) const {
  std::vector<std::string> paths;
  for (const auto& [path, mark] : marks_) {
    const auto slash = path.rfind('/');
    const bool has_place =
        slash == std::string::npos || met.directories.contains(path.substr(0, slash));
    if (has_place && !met.paths.contains(path)) paths.push_back(path);
  }
  return paths;
}

// --- archive ---

namespace {

using Entry = std::unique_ptr<archive_entry, void (*)(archive_entry*)>;

Entry new_entry(const std::string& path, mode_t mode, std::int64_t mtime) {
  Entry entry(::archive_entry_new(), ::archive_entry_free);
  ::archive_entry_set_pathname(entry.get(), path.c_str());
  ::archive_entry_set_mode(entry.get(), mode);
  ::archive_entry_set_mtime(entry.get(), mtime, 0);
  ::archive_entry_set_uid(entry.get(), 0);
  ::archive_entry_set_gid(entry.get(), 0);
  return entry;
}

/// An archive being written. Keeps the sink's error, because libarchive only reports that there was
/// one.
class Writer {
 public:
  explicit Writer(const ByteSink& sink)
      : sink_(sink), archive_(::archive_write_new(), ::archive_write_free) {
    ::archive_write_set_format_pax_restricted(archive_.get());
    ::archive_write_set_bytes_per_block(archive_.get(), 1 << 18);
    ::archive_write_set_bytes_in_last_block(archive_.get(), 1);
    ::archive_write_open(archive_.get(), this, nullptr, take, nullptr);
  }

  Result<void> begin(archive_entry* entry) {
    return checked(::archive_write_header(archive_.get(), entry));
  }
  Result<void> data(const void* bytes, std::size_t size) {
    return checked(::archive_write_data(archive_.get(), bytes, size) ==
                           static_cast<la_ssize_t>(size)
                       ? ARCHIVE_OK
                       : ARCHIVE_FATAL);
  }
  /// Writes `size` bytes of `file` at `offset`. A file that has become shorter is an error.
  Result<void> content(int file, std::uint64_t offset, std::uint64_t size,
                       const std::string& path) {
    static thread_local std::array<char, 1 << 18> buffer;
    while (size > 0) {
      const auto count = std::min<std::uint64_t>(size, buffer.size());
      const ssize_t got = ::pread(file, buffer.data(), count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "read " + in_quotes("/" + path));
      if (got == 0)
        return Error(ErrorKind::corrupt,
                     formatted("read {}: shorter than stated", in_quotes("/" + path)));
      SPC_TRY(data(buffer.data(), static_cast<std::size_t>(got)));
      offset += static_cast<std::uint64_t>(got);
      size -= static_cast<std::uint64_t>(got);
    }
    return {};
  }
  /// Writes a hole declared in the entry's header. libarchive counts the bytes and writes none.
  Result<void> hole(std::uint64_t size) {
    static const std::array<char, 1 << 18> zeros{};
    while (size > 0) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(size, zeros.size()));
      SPC_TRY(data(zeros.data(), count));
      size -= count;
    }
    return {};
  }
  Result<void> finish() { return checked(::archive_write_close(archive_.get())); }

 private:
  static la_ssize_t take(archive* handle, void* self, const void* bytes, std::size_t size) {
    auto& writer = *static_cast<Writer*>(self);
    if (auto done = writer.sink_(bytes, size); !done) {
      writer.failed_ = std::move(done).error();
      ::archive_set_error(handle, EIO, "the sink failed");
      return -1;
    }
    return static_cast<la_ssize_t>(size);
  }
  Result<void> checked(int status) {
    if (failed_) return *failed_;
    if (status >= ARCHIVE_WARN) return {};
    const char* why = ::archive_error_string(archive_.get());
    return Error(ErrorKind::system,
                 std::string("write the archive: ") + printable(why == nullptr ? "failed" : why));
  }

  const ByteSink& sink_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  std::optional<Error> failed_;
};

Result<void> write_text(Writer& writer, const AddedFile& file, std::int64_t mtime) {
  const auto entry = new_entry(file.path, S_IFREG | file.mode, mtime);
  ::archive_entry_set_size(entry.get(), static_cast<la_int64_t>(file.text.size()));
  SPC_TRY(writer.begin(entry.get()));
  return writer.data(file.text.data(), file.text.size());
}

struct Extent {
  std::uint64_t offset, size;
};

/// Returns the data extents of a sparse file; empty if the file has no holes or its file system
/// does not report them.
std::vector<Extent> data_of(int file, const struct stat& status) {
  std::vector<Extent> extents;
  if (status.st_blocks * 512 >= status.st_size) return extents;
  off_t at = 0;
  while (at < status.st_size) {
    const off_t begin = ::lseek(file, at, SEEK_DATA);
    if (begin < 0 && errno != ENXIO) return {};
    if (begin < 0) break;  // the rest is a hole
    const off_t end = std::min(::lseek(file, begin, SEEK_HOLE), status.st_size);
    if (end <= begin) return {};
    extents.push_back({static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end - begin)});
    at = end;
  }
  if (extents.empty()) extents.push_back({static_cast<std::uint64_t>(status.st_size), 0});
  return extents;
}

Result<void> write_regular(Writer& writer, const TreeEntry& found, archive_entry* entry) {
  const UniqueFd file(::openat(found.directory, found.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "read " + in_quotes("/" + found.path));
  const auto size = static_cast<std::uint64_t>(found.status.st_size);
  ::archive_entry_set_size(entry, found.status.st_size);
  const auto extents = data_of(file.get(), found.status);
  for (const Extent& extent : extents) {
    ::archive_entry_sparse_add_entry(entry, static_cast<la_int64_t>(extent.offset),
                                     static_cast<la_int64_t>(extent.size));
  }
  SPC_TRY(writer.begin(entry));
  if (extents.empty()) return writer.content(file.get(), 0, size, found.path);
  std::uint64_t at = 0;
  for (const Extent& extent : extents) {
    SPC_TRY(writer.hole(extent.offset - at));
    SPC_TRY(writer.content(file.get(), extent.offset, extent.size, found.path));
    at = extent.offset + extent.size;
  }
  return writer.hole(size - at);
}

/// First path of each inode with hard links. The key needs the device: overlayfs shows one per
/// layer, and files of different layers may have the same inode number.
using Linked = std::map<std::pair<dev_t, ino_t>, std::string>;

Result<void> write_one(Writer& writer, const TreeEntry& found, Linked& linked, std::int64_t time) {
  const struct stat& status = found.status;
  const auto entry = new_entry(found.path, status.st_mode, time);
  if (S_ISDIR(status.st_mode) || S_ISFIFO(status.st_mode)) return writer.begin(entry.get());
  if (S_ISLNK(status.st_mode)) {
    std::string target(static_cast<std::size_t>(status.st_size) + 4096, '\0');
    const ssize_t size = ::readlinkat(found.directory, found.name, target.data(), target.size());
    if (size < 0) return Error::from_errno(errno, "read link " + in_quotes("/" + found.path));
    target.resize(static_cast<std::size_t>(size));
    ::archive_entry_set_symlink(entry.get(), target.c_str());
    return writer.begin(entry.get());
  }
  if (!S_ISREG(status.st_mode)) return {};
  if (status.st_nlink > 1) {
    const auto [first, fresh] = linked.emplace(std::pair(status.st_dev, status.st_ino), found.path);
    if (!fresh) {
      ::archive_entry_set_hardlink(entry.get(), first->second.c_str());
      return writer.begin(entry.get());
    }
  }
  return write_regular(writer, found, entry.get());
}

/// Writes OCI's mark of a removed entry; of `DIRECTORY/.wh..opq`, of a directory that hides those
/// of lower layers.
Result<void> write_whiteout(Writer& writer, const std::string& path) {
  const auto name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  return write_text(
      writer, {.path = path.substr(0, name) + ".wh." + path.substr(name), .text = {}, .mode = 0},
      0);
}

bool is_opaque(const TreeEntry& entry) {
  if (!S_ISDIR(entry.status.st_mode)) return false;
  const UniqueFd directory(
      ::openat(entry.directory, entry.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  char mark = 0;
  return ::fgetxattr(directory.get(), "user.overlay.opaque", &mark, 1) == 1 && mark == 'y';
}

}  // namespace

std::optional<std::int64_t> latest_time() {
  const char* const text = std::getenv("SOURCE_DATE_EPOCH");
  std::int64_t seconds = 0;
  const char* const end = text == nullptr ? nullptr : text + std::strlen(text);
  if (end == nullptr || std::from_chars(text, end, seconds).ptr != end || end == text)
    return std::nullopt;
  return seconds;
}

Result<void> write_tree(int root, const std::vector<AddedFile>& added, const ByteSink& sink) {
  Writer writer(sink);
  std::set<std::string> replaced;
  for (const auto& file : added) replaced.insert(file.path);
  Linked linked;
  std::set<std::string> missing;
  for (const auto& file : added) {
    for (auto end = file.path.find('/'); end != std::string::npos;
         end = file.path.find('/', end + 1)) {
      missing.insert(file.path.substr(0, end));
    }
  }
  const std::int64_t latest = latest_time().value_or(INT64_MAX);
  std::int64_t youngest = std::min<std::int64_t>(latest, 0);
  SPC_TRY(walk_image(root, [&](const TreeEntry& entry) -> Result<void> {
    missing.erase(entry.path);
    if (replaced.contains(entry.path)) return {};
    const std::int64_t time = std::min<std::int64_t>(entry.status.st_mtim.tv_sec, latest);
    youngest = std::max(youngest, time);
    return write_one(writer, entry, linked, time);
  }));
  for (const auto& directory : missing)
    SPC_TRY(writer.begin(new_entry(directory, S_IFDIR | 0755, youngest).get()));
  for (const auto& file : added) SPC_TRY(write_text(writer, file, youngest));
  return writer.finish();
}

Result<void> write_changes(int root, const KnownTree& known, const ByteSink& sink) {
  Writer writer(sink);
  Linked linked;
  KnownTree::Met met;
  const std::int64_t latest = latest_time().value_or(INT64_MAX);
  SPC_TRY(walk_image(root, [&](const TreeEntry& entry) -> Result<void> {
    if (known.is_unchanged(entry, met)) return {};
    return write_one(writer, entry, linked,
                     std::min<std::int64_t>(entry.status.st_mtim.tv_sec, latest));
  }));
  for (const std::string& path : known.gone(met)) SPC_TRY(write_whiteout(writer, path));
  return writer.finish();
}

Result<void> write_upper(int upper, const ByteSink& sink) {
  Writer writer(sink);
  Linked linked;
  const std::int64_t latest = latest_time().value_or(INT64_MAX);
  SPC_TRY(walk_image(upper, [&](const TreeEntry& entry) -> Result<void> {
    if (S_ISCHR(entry.status.st_mode) && entry.status.st_rdev == 0)
      return write_whiteout(writer, entry.path);
    const std::int64_t time = std::min<std::int64_t>(entry.status.st_mtim.tv_sec, latest);
    if (auto written = write_one(writer, entry, linked, time); !written) return written;
    return is_opaque(entry) ? write_whiteout(writer, entry.path + "/.wh..opq") : Result<void>();
  }));
  return writer.finish();
}

// --- unpacking ---

namespace {

using ArchiveReader = std::unique_ptr<::archive, int (*)(::archive*)>;

/// Returns null if it is no tar archive. Rewinds the file first.
ArchiveReader open_archive(int file) {
  ::lseek(file, 0, SEEK_SET);
  ArchiveReader reader(::archive_read_new(), ::archive_read_free);
  ::archive_read_support_format_tar(reader.get());
  ::archive_read_support_filter_all(reader.get());
  constexpr std::size_t kBlock = 1 << 18;
  if (::archive_read_open_fd(reader.get(), file, kBlock) != ARCHIVE_OK) reader.reset();
  return reader;
}

}  // namespace

bool is_archive(int file) {
  const auto reader = open_archive(file);
  archive_entry* entry = nullptr;
  return reader && ::archive_read_next_header(reader.get(), &entry) == ARCHIVE_OK;
}

Result<void> unpack_archive(int file) {
  const auto reader = open_archive(file);
  const ArchiveReader disk(::archive_write_disk_new(), ::archive_write_free);
  ::archive_write_disk_set_options(
      disk.get(), ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_UNLINK |
                      ARCHIVE_EXTRACT_SECURE_NODOTDOT | ARCHIVE_EXTRACT_SECURE_SYMLINKS);
  const auto failed = [](::archive* one) {
    const char* const why = ::archive_error_string(one);
    return Error(ErrorKind::corrupt,
                 std::string("unpack the archive: ") + printable(why == nullptr ? "failed" : why));
  };
  if (!reader) return Error(ErrorKind::corrupt, "unpack the archive: it is no tar archive");
  for (archive_entry* entry = nullptr;;) {
    const int next = ::archive_read_next_header(reader.get(), &entry);
    if (next == ARCHIVE_EOF) return {};
    if (next < ARCHIVE_WARN) return failed(reader.get());
    if (::archive_write_header(disk.get(), entry) < ARCHIVE_WARN) return failed(disk.get());
    const void* bytes = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    int read = ARCHIVE_OK;
    while ((read = ::archive_read_data_block(reader.get(), &bytes, &size, &offset)) == ARCHIVE_OK) {
      if (::archive_write_data_block(disk.get(), bytes, size, offset) < ARCHIVE_WARN)
        return failed(disk.get());
    }
    if (read != ARCHIVE_EOF) return failed(reader.get());
    if (::archive_write_finish_entry(disk.get()) < ARCHIVE_WARN) return failed(disk.get());
  }
}

}  // namespace spc
