#pragma once

#include <map>

#include "image/user_source/file_part.hpp"

namespace spc {

/// The files in a tar archive that is not compressed, found by one pass over its headers: their data is not read. Links
/// inside the archive are followed. What the strict rules for layers refuse (layer/tar_header.hpp) is refused here too.
class TarFiles final : public NamedFiles {
 public:
  /// `name` is the archive's in messages. At most a million entries.
  static Result<std::unique_ptr<TarFiles>> index(FilePart archive, const std::string& name);

  Result<std::optional<FilePart>> find(const std::string& name) const override;
  /// Whether something lies below `directory/`, or is it.
  [[nodiscard]] bool has(const std::string& directory) const;
  [[nodiscard]] const FilePart& archive() const { return archive_; }

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    bool is_file = false;
    std::string link;  ///< the entry's name that a link stands for
  };
  explicit TarFiles(FilePart archive) : archive_(std::move(archive)) {}
  Result<void> read_headers();
  Result<std::string> text_at(std::uint64_t offset, std::uint64_t size) const;

  FilePart archive_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace spc
