#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tool/images/helper_program.hpp"

namespace spc {

/// A squashfs: a layer of the store, or a file of the user's.
struct SquashfsFile {
  UniqueFd file;
  std::uint64_t offset = 0;  ///< bytes
};

/// What an image is made of: layers, or a directory.
struct ImageFiles {
  std::vector<SquashfsFile> layers;  ///< bottom layer first
  UniqueFd directory;                ///< O_PATH; empty: there are layers
};

/// How much of it can be written to.
struct WritableLayer {
  bool wanted = true;
  std::string size = "50%";  ///< of a tmpfs, in its own syntax
  std::string directory;     ///< keeps what is written, instead of a tmpfs; empty: nothing is kept
  bool keep = true;          ///< false: what `directory` keeps is shown, and nothing is added to it
};

/// An image mounted in the caller's own namespaces.
struct MountedImage {
  std::string place;  ///< in it, `root` is the image and `tmp` an empty directory
  UniqueFd root;      ///< O_PATH, for the process that mounted it: a copied mount namespace has its own
  bool writable = true;
  std::uint32_t data = 0;              ///< how many files of data
  std::vector<HelperProgram> servers;  ///< of the layers and of files of data: they end with their mounts
  UniqueFd lock;                       ///< on the directory that keeps what is written: one container at a time
};

/// Mounts an image without privilege: each layer by a `fuse` of its own, one overlay over them. The calling process must
/// have entered a user namespace (base/user_namespace.hpp). `place` is a directory that a tmpfs can be mounted on.
/// Where the kernel cannot write without privilege (Linux before 6.12), `writable` says so.
Result<MountedImage> mount_image(ImageFiles files, const std::string& place, const WritableLayer& writable);

/// Mounts a squashfs file of data, by a `fuse` of its own, as `data0`, `data1` and so on in the image's place.
Result<void> add_data(MountedImage& image, UniqueFd file);

}  // namespace spc
