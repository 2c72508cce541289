#include "tool/archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "tool/image_tree.hpp"

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

/// An archive that is being written; the sink's error is kept, since libarchive knows only that there was one.
class Writer {
 public:
  explicit Writer(const ByteSink& sink) : sink_(sink), archive_(::archive_write_new(), ::archive_write_free) {
    ::archive_write_set_format_pax_restricted(archive_.get());
    ::archive_write_set_bytes_per_block(archive_.get(), 1 << 18);
    ::archive_write_set_bytes_in_last_block(archive_.get(), 1);
    ::archive_write_open(archive_.get(), this, nullptr, take, nullptr);
  }

  Result<void> begin(archive_entry* entry) { return checked(::archive_write_header(archive_.get(), entry)); }
  Result<void> data(const void* bytes, std::size_t size) {
    return checked(::archive_write_data(archive_.get(), bytes, size) == static_cast<la_ssize_t>(size) ? ARCHIVE_OK
                                                                                                      : ARCHIVE_FATAL);
  }
  /// `size` bytes of `file`, from its present position; a file that has become shorter is an error.
  Result<void> content(int file, std::uint64_t size, const std::string& path) {
    static thread_local std::array<char, 1 << 18> buffer;
    while (size > 0) {
      const ssize_t got = ::read(file, buffer.data(), std::min<std::uint64_t>(size, buffer.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "read " + quoted("/" + path));
      if (got == 0) return Error(ErrorKind::corrupt, "read " + quoted("/" + path) + ": it is shorter than it says");
      SPC_TRY(data(buffer.data(), static_cast<std::size_t>(got)));
      size -= static_cast<std::uint64_t>(got);
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
    return Error(ErrorKind::system, std::string("write the archive: ") + printable(why == nullptr ? "failed" : why));
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

Result<void> write_one(Writer& writer, const TreeEntry& found, std::map<ino_t, std::string>& linked) {
  const struct stat& status = found.status;
  const auto entry = new_entry(found.path, status.st_mode, status.st_mtim.tv_sec);
  if (S_ISDIR(status.st_mode) || S_ISFIFO(status.st_mode)) return writer.begin(entry.get());
  if (S_ISLNK(status.st_mode)) {
    std::string target(static_cast<std::size_t>(status.st_size) + 4096, '\0');
    const ssize_t size = ::readlinkat(found.directory, found.name, target.data(), target.size());
    if (size < 0) return Error::from_errno(errno, "read link " + quoted("/" + found.path));
    target.resize(static_cast<std::size_t>(size));
    ::archive_entry_set_symlink(entry.get(), target.c_str());
    return writer.begin(entry.get());
  }
  if (!S_ISREG(status.st_mode)) return {};
  if (status.st_nlink > 1) {
    const auto [first, fresh] = linked.emplace(status.st_ino, found.path);
    if (!fresh) {
      ::archive_entry_set_hardlink(entry.get(), first->second.c_str());
      return writer.begin(entry.get());
    }
  }
  const UniqueFd file(::openat(found.directory, found.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "open " + quoted("/" + found.path) + " of the image");
  ::archive_entry_set_size(entry.get(), status.st_size);
  SPC_TRY(writer.begin(entry.get()));
  return writer.content(file.get(), static_cast<std::uint64_t>(status.st_size), found.path);
}

}  // namespace

Result<void> write_tree(int root, const std::vector<AddedFile>& added, const ByteSink& sink) {
  Writer writer(sink);
  std::set<std::string> replaced;
  for (const auto& file : added) replaced.insert(file.path);
  std::map<ino_t, std::string> linked;
  bool has_etc = false;
  SPC_TRY(walk_image(root, [&](const TreeEntry& entry) -> Result<void> {
    has_etc = has_etc || entry.path == "etc";
    if (replaced.contains(entry.path)) return {};
    return write_one(writer, entry, linked);
  }));
  if (!has_etc && !added.empty()) SPC_TRY(writer.begin(new_entry("etc", S_IFDIR | 0755, 0).get()));
  for (const auto& file : added) SPC_TRY(write_text(writer, file, ::time(nullptr)));
  return writer.finish();
}

Result<void> write_members(const std::vector<ArchiveMember>& members, const ByteSink& sink) {
  Writer writer(sink);
  for (const auto& member : members) {
    if (member.file < 0) {
      SPC_TRY(write_text(writer, {.path = member.path, .text = member.text}, 0));
      continue;
    }
    const auto entry = new_entry(member.path, S_IFREG | 0644, 0);
    ::archive_entry_set_size(entry.get(), static_cast<la_int64_t>(member.size));
    SPC_TRY(writer.begin(entry.get()));
    SPC_TRY(writer.content(member.file, member.size, member.path));
  }
  return writer.finish();
}

}  // namespace spc
