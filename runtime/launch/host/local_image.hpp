#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A file or directory that the user named as image, opened as the user, told apart by what is in it.
struct LocalImage {
  enum class Kind { squashfs, directory, archive };

  Kind kind{};
  UniqueFd file;             ///< open for reading
  std::uint64_t offset = 0;  ///< squashfs: where it begins in the file, bytes
  std::string warning;       ///< one line for the user; empty: none
};

/// `path` is relative to the working directory, or begins with ~/ for `home`. What is no file or directory is refused
/// without being opened, so that neither a FIFO nor a device can hold the task up.
Result<LocalImage> open_local_image(const std::string& path, const std::string& home);

/// What its record is for an image in the store; here it says that the settings are in the image's files
/// (launch/image_files.hpp). A sealed memory file.
Result<UniqueFd> record_of_local_image();

/// "did you mean ./NAME?" if `image`, the name of an image at a registry, is also that of a file in the working
/// directory; else empty.
std::string did_you_mean_file(const std::string& image);

}  // namespace spc
