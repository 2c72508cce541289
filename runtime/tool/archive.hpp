#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A file that is put into the archive instead of, or besides, what the image has there.
struct AddedFile {
  std::string path;  ///< without '/' at its beginning
  std::string text;
  std::uint32_t mode = 0644;
};

/// Takes the bytes of an archive as they come.
using ByteSink = std::function<Result<void>(const void* bytes, std::size_t size)>;

/// Writes the mounted image below `root` as one tar archive (PAX): directories, files, links, hard links; everything belongs
/// to root, sockets and devices are left out.
Result<void> write_tree(int root, const std::vector<AddedFile>& added, const ByteSink& sink);

/// A tar archive of a few files, one of which may be large: an open file of `size` bytes, read from its beginning.
struct ArchiveMember {
  std::string path;
  std::string text;
  int file = -1;
  std::uint64_t size = 0;  ///< of `file`
};
Result<void> write_members(const std::vector<ArchiveMember>& members, const ByteSink& sink);

}  // namespace spc
