#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// The files of a mounted image, looked at from outside. Links of the image never lead out of it.

/// Opens `path` as the image understands it.
Result<UniqueFd> open_in_image(int root, const std::string& path);
/// The text of a file, at most `limit` bytes of it; empty if there is none.
std::string text_in_image(int root, const std::string& path, std::size_t limit);

struct TreeEntry {
  std::string path;  ///< without a '/' at its beginning
  int directory;     ///< the one it lies in,
  const char* name;  ///< by this name
  struct stat status;
};
/// Calls `visit` for everything below `root`, a directory before what is in it, in no certain order. Links are not followed.
Result<void> walk_image(int root, const std::function<Result<void>(const TreeEntry&)>& visit);

}  // namespace spc
