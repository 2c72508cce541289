#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A file or directory given as image, opened as the user; its type is detected from its content.
struct LocalImage {
  enum class Kind { squashfs, directory, archive };

  Kind kind{};
  UniqueFd file;             ///< open for reading; a directory, which can be: O_PATH
  std::uint64_t offset = 0;  ///< squashfs: its start in the file, in bytes
  std::string warning;       ///< one line for the user, or empty
};

/// `path` is relative to the working directory, or starts with ~/ for `home`. Anything but a file
/// or directory is refused without being opened, so that no FIFO or device can block the task.
Result<LocalImage> open_local_image(const std::string& path, const std::string& home);

/// "did you mean ./NAME?" if `image`, the name of a registry image, is also that of a file in the
/// working directory; otherwise empty.
std::string did_you_mean_file(const std::string& image);

}  // namespace spc
