#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tool/images/helper_program.hpp"

namespace spc::tool {

/// A squashfs: a layer of the store, or a file of the user.
struct SquashfsFile {
  UniqueFd file;
  std::uint64_t offset = 0;  ///< bytes
};

/// Content of an image: layers, or a directory.
struct ImageFiles {
  std::vector<SquashfsFile> layers;  ///< bottom layer first
  UniqueFd directory;                ///< O_PATH; empty: there are layers
};

/// Where changes go.
struct WritableLayer {
  bool wanted = true;
  std::string size = "50%";  ///< of a tmpfs, in its own syntax
  std::string directory;     ///< keeps changes, instead of a tmpfs; empty: changes are discarded
  bool keep = true;          ///< false: shows the changes in `directory` read-only
};

/// An image mounted in the caller's namespaces.
struct MountedImage {
  std::string place;  ///< contains `root`, the image, and `tmp`, an empty directory
  UniqueFd root;  ///< O_PATH, for the process that mounted it: a copied mount namespace has its own
  bool writable = true;
  std::uint32_t data = 0;              ///< number of data files
  std::vector<HelperProgram> servers;  ///< of the layers and data files: they end with their mounts
  UniqueFd lock;                       ///< on the directory with changes: one container at a time
};

/// Mounts an image without privileges: one `fuse` per layer, one overlay over them. The calling
/// process must have entered a user namespace (base/process/user_namespace.hpp). `place` is a
/// directory to mount a tmpfs on. If the kernel does not support unprivileged writing (Linux
/// before 6.12), `writable` tells.
Result<MountedImage> mount_image(ImageFiles files, const std::string& place,
                                 const WritableLayer& writable);

/// Mounts a squashfs data file through its own `fuse`, as `data0`, `data1` and so on beside the
/// image.
Result<void> add_data(MountedImage& image, UniqueFd file);

}  // namespace spc::tool
