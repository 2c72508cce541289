#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::enroot {

// Containers made by `create`: directories in ENROOT_DATA_PATH. Nothing is unpacked: `image.sqsh`
// is the image, and `changes` has the changes (scontainer run --changes). Containers unpacked there
// by enroot itself can be started, too.

struct EnrootContainer {
  std::string path;
  std::string image;    ///< a file, or a directory unpacked by enroot
  std::string changes;  ///< a directory, which may be missing; empty: unpacked by enroot
};

/// The container of that name; errors are worded as by enroot.
Result<EnrootContainer> find_container(const std::string& data_path, const std::string& name);

/// A path without links; the error for a missing file is worded as by enroot.
Result<std::string> real_path(const std::string& path);
/// Whether it is a file that starts like a squashfs.
bool is_squashfs(const std::string& path);

/// Creates a container; `put_image` creates its image at the given path. The container appears when
/// it is complete.
Result<void> create_container(const std::string& data_path, const std::string& name, bool replace,
                              const std::function<Result<void>(const std::string&)>& put_image);
/// Gives a container its own image: a reflink if the file system supports it, otherwise a hard link
/// if possible, otherwise a copy.
Result<void> put_image_file(const std::string& image, const std::string& path);

Result<void> remove_container(const std::string& path);

/// Names, sorted.
Result<std::vector<std::string>> list_containers(const std::string& data_path);

}  // namespace spc::enroot
