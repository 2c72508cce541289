#include "image/export/archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "image/export/image_tree.hpp"

namespace spc {
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

/// An archive that is being written; the sink's error is kept, since libarchive knows only that
/// there was one.
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
  /// `size` bytes of `file` at `offset`; a file that has become shorter is an error.
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
  /// A hole that the entry's header names: libarchive counts the bytes and writes none.
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

/// Where a file with holes has data; nothing for a file that has none, or whose file system does
/// not say.
std::vector<Extent> data_of(int file, const struct stat& status) {
  std::vector<Extent> extents;
  if (status.st_blocks * 512 >= status.st_size) return extents;
  off_t at = 0;
  while (at < status.st_size) {
    const off_t begin = ::lseek(file, at, SEEK_DATA);
    if (begin < 0 && errno != ENXIO) return {};
    if (begin < 0) break;  // only a hole is left
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

/// By both numbers: overlayfs shows a device for each layer, and files of different layers have the
/// same inode number.
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
  for (const std::string& path : known.gone(met)) {
    const auto name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
    SPC_TRY(write_text(
        writer, {.path = path.substr(0, name) + ".wh." + path.substr(name), .text = {}, .mode = 0},
        0));
  }
  return writer.finish();
}

}  // namespace spc
