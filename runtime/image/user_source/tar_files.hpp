#pragma once

#include <map>

#include "image/user_source/file_part.hpp"

namespace spc::user_source {

/// The files in an uncompressed tar archive, found by one pass over its headers, without reading
/// their data. Links in the archive are followed. What the strict rules for layers refuse
/// (image/layer/archive/tar_header.hpp) is refused here, too.
class TarFiles final : public NamedFiles {
 public:
  /// `name` names the archive in messages. At most a million entries.
  static Result<std::unique_ptr<TarFiles>> index(FilePart archive, const std::string& name);

  Result<std::optional<FilePart>> find(const std::string& name) const override;
  /// Whether `directory/` or something below it exists.
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
