#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

// Containers that `create` makes: directories of ENROOT_DATA_PATH. Nothing is unpacked: `image.sqsh` is the image, and
// `changes` keeps what has been written (scontainer run --changes). What enroot itself has unpacked there can be started, too.

struct EnrootContainer {
  std::string path;
  std::string image;    ///< file, or directory that enroot has unpacked
  std::string changes;  ///< directory, which need not be there; empty: enroot has unpacked it
};

/// The container of that name; its errors are enroot's.
Result<EnrootContainer> find_container(const std::string& data_path, const std::string& name);

/// A path without links; the error if there is no such file is enroot's.
Result<std::string> real_path(const std::string& path);
/// Whether it is a file that begins like a squashfs.
bool is_squashfs(const std::string& path);

/// Makes a container; `put_image` makes its image at the path it is given. It appears when it is complete.
Result<void> create_container(const std::string& data_path, const std::string& name, bool replace,
                              const std::function<Result<void>(const std::string&)>& put_image);
/// The image as a container's own: shares its blocks where the file system can, or is another name of the same file where
/// that is possible, else a copy.
Result<void> put_image_file(const std::string& image, const std::string& path);

Result<void> remove_container(const std::string& path);

/// Names, sorted.
Result<std::vector<std::string>> list_containers(const std::string& data_path);

}  // namespace spc
