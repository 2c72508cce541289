#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::user_source {

// --- temporary file ---

/// Creates an unnamed file for about `size` bytes, in the first of $TMPDIR, /tmp and /var/tmp with
/// enough space. It vanishes with its last descriptor.
Result<UniqueFd> temporary_file(std::uint64_t size);

// --- file part ---

/// `size` bytes at `offset` of a file. The file stays open as long as parts of it exist.
struct FilePart {
  std::shared_ptr<const UniqueFd> file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::string media_type;  ///< empty: unknown
};

/// Opens a file given by the user, which may be of any type. Accepts only regular files and never
/// blocks.
Result<FilePart> open_ordinary_file(const std::string& path);
/// Checks a descriptor opened with O_NONBLOCK. `what` names it in messages.
Result<FilePart> ordinary_file(UniqueFd file, const std::string& what);

/// Creates a memory file with these bytes.
Result<FilePart> file_with(std::string_view bytes, std::string media_type);

/// Returns the bytes, at most `limit`. A file that ends before the part is ErrorKind::corrupt.
Result<std::string> read_part(const FilePart& part, std::size_t limit, const std::string& what);
/// Reads into `into` from `offset` of the part. Returns the number of bytes, fewer only at its end.
Result<std::size_t> read_at(const FilePart& part, std::uint64_t offset, std::span<std::byte> into);

/// Returns the SHA-256 of all bytes. Reports to `log` periodically that `what` is being read, so
/// that a long read does not look like a hang.
Result<Digest> digest_of(const FilePart& part, const std::string& what, Log& log);

/// A set of files with names: a directory or an archive.
class NamedFiles {
 public:
  virtual ~NamedFiles() = default;
  /// Returns the file, or an empty optional if it does not exist. `name` is relative, with '/'
  /// between components.
  virtual Result<std::optional<FilePart>> find(const std::string& name) const = 0;
};

// --- directory files ---

/// The files below a directory. Links are followed below it and never out of it.
class DirectoryFiles final : public NamedFiles {
 public:
  static Result<std::unique_ptr<DirectoryFiles>> open(const std::string& path);
  Result<std::optional<FilePart>> find(const std::string& name) const override;

 private:
  DirectoryFiles(UniqueFd directory, std::string path)
      : directory_(std::move(directory)), path_(std::move(path)) {}

  UniqueFd directory_;
  std::string path_;
};

// --- decompression ---

/// Returns the content of a compressed archive (gzip, zstd) as a temporary file, by the rules for
/// layers (convert/tar_reader.hpp). Returns any other file unchanged. An archive's index is at its
/// end, so reading it needs the unpacked file. Progress is written to `log`.
Result<FilePart> unpacked(FilePart file, const std::string& name, Log& log);

// --- tar files ---

/// The files in an uncompressed tar archive, indexed in one pass over its headers without reading
/// their data. Links in the archive are followed. The strict rules for layers
/// (convert/tar_reader.hpp) apply.
class TarFiles final : public NamedFiles {
 public:
  /// Reads the archive's headers, at most a million entries. `name` names it in messages.
  static Result<std::unique_ptr<TarFiles>> index(FilePart archive, const std::string& name);

  Result<std::optional<FilePart>> find(const std::string& name) const override;
  /// Returns whether `directory/` or an entry below it exists.
  [[nodiscard]] bool has(const std::string& directory) const;
  [[nodiscard]] const FilePart& archive() const { return archive_; }

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    bool is_file = false;
    std::string link;  ///< the entry that a link refers to
  };
  explicit TarFiles(FilePart archive) : archive_(std::move(archive)) {}
  Result<void> read_headers();
  Result<std::string> text_at(std::uint64_t offset, std::uint64_t size) const;

  FilePart archive_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace spc::user_source
