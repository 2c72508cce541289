#pragma once

#include <cstdint>
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

/// `size` bytes at `offset` of a file, which stays open while there are parts of it.
struct FilePart {
  std::shared_ptr<const UniqueFd> file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::string media_type;  ///< empty: not known
};

/// Opens a file given by the user, which can be anything: only a regular file is accepted, and
/// nothing blocks.
Result<FilePart> open_ordinary_file(const std::string& path);
/// Checks a descriptor that was opened with O_NONBLOCK; `what` names it in messages.
Result<FilePart> ordinary_file(UniqueFd file, const std::string& what);

/// A memory file with these bytes.
Result<FilePart> file_with(std::string_view bytes, std::string media_type);

/// The bytes, at most `limit`. A file that ends before the part is ErrorKind::corrupt.
Result<std::string> read_part(const FilePart& part, std::size_t limit, const std::string& what);
/// Fills `into` from `offset` of the part; fewer bytes at its end.
Result<std::size_t> read_at(const FilePart& part, std::uint64_t offset, std::span<std::byte> into);

/// SHA-256 of all bytes. Reports to `log` now and then that `what` is being read: silence would
/// look like a hang.
Result<Digest> digest_of(const FilePart& part, const std::string& what, Log& log);

/// Files below one name: a directory or an archive.
class NamedFiles {
 public:
  virtual ~NamedFiles() = default;
  /// `name` is relative, with '/' between components. Empty if there is no such file.
  virtual Result<std::optional<FilePart>> find(const std::string& name) const = 0;
};

}  // namespace spc::user_source
