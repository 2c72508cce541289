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

}  // namespace spc
