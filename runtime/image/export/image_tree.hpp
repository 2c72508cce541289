#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// The files of a mounted image, seen from outside. Links in the image never lead out of it.

/// Opens `path`, resolved inside the image.
Result<UniqueFd> open_in_image(int root, const std::string& path);
/// The text of a file, at most `limit` bytes; empty if there is none.
std::string text_in_image(int root, const std::string& path, std::size_t limit);

struct TreeEntry {
  std::string path;  ///< without leading '/'
  int directory;     ///< its directory,
  const char* name;  ///< its name there
  struct stat status;
};
/// Calls `visit` for everything below `root`, a directory before its content, by name. Links are
/// not followed.
Result<void> walk_image(int root, const std::function<Result<void>(const TreeEntry&)>& visit);

}  // namespace spc
