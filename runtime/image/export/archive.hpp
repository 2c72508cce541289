#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A file that is added to the archive, replacing the image's own.
struct AddedFile {
  std::string path;  ///< without leading '/'
  std::string text;
  std::uint32_t mode = 0644;
};

/// Receives the bytes of an archive in order.
using ByteSink = std::function<Result<void>(const void* bytes, std::size_t size)>;

/// Writes the mounted image below `root` as one tar archive (PAX): directories, files, links, hard links; everything is
/// owned by root, sockets and devices are skipped. The same tree gives the same bytes: entries are in order, and added files are as old
/// as the youngest of the tree. Nothing is younger than $SOURCE_DATE_EPOCH, if that is set.
Result<void> write_tree(int root, const std::vector<AddedFile>& added, const ByteSink& sink);

}  // namespace spc
