#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/process/child.hpp"
#include "base/process/user_namespace.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

/// A squashfs: a layer of the store, or a file of the user.
struct SquashfsFile {
  UniqueFd file;
  std::uint64_t offset = 0;  ///< bytes
  bool is_addition = false;  ///< its directory `upper` is the layer, if it has one
};

/// A `fuse` that serves files, before their mounts exist (protocol/fuse.hpp).
struct FileServer {
  Child program;
  UniqueFd socket;
  std::size_t files = 0;
};

/// Content of an image: layers, or a directory.
struct ImageFiles {
  std::vector<SquashfsFile> layers;  ///< bottom layer first, above `directory`
  UniqueFd directory;                ///< O_PATH; empty if the image has layers
  /// O_PATH; upper directories of earlier overlays with userxattr, above all else, bottom one first
  std::vector<UniqueFd> changes;
  std::vector<FileServer> servers;  ///< of all layers if they have been started

  /// Starts the servers of the layers. Called before the process enters a user namespace with this
  /// map, they start while it does, and do not copy its mounts. mount_image() starts missing ones.
  Result<void> start_servers(RootMap map);
};

/// The overlay's writable layer.
struct WritableLayer {
  bool wanted = true;
  std::string size = "50%";  ///< of a tmpfs, in its own syntax
  std::string directory;     ///< keeps changes; empty: a tmpfs discards them
  bool keep = true;          ///< false: shows the changes in `directory` read-only
  bool in_image = false;     ///< changes go into the image itself if it is a directory
};

/// An image mounted in the caller's namespaces.
struct MountedImage {
  std::string place;  ///< contains `root`, the image, and `tmp`, an empty directory
  /// O_PATH, valid for the process that mounted it; a copied mount namespace has its own
  UniqueFd root;
  bool writable = true;
  std::uint32_t data = 0;      ///< number of data files
  std::vector<Child> servers;  ///< of the layers and data files: they end with their mounts
  UniqueFd lock;               ///< on the directory with changes: one container at a time
};

/// Mounts an image without privileges: one `fuse` for all layers and one overlay over them. The
/// calling process must have entered a user namespace (base/process/user_namespace.hpp). `place` is
/// a directory on which a tmpfs is mounted. `writable` is false if the kernel has no unprivileged
/// writable overlays (Linux before 6.12).
Result<MountedImage> mount_image(ImageFiles files, const std::string& place,
                                 const WritableLayer& writable);

/// Mounts one more writable overlay over the `layers` layers that mount_image() has mounted in
/// `base` for this process, with `changes` above them: upper directories of earlier overlays,
/// bottom one first. Its place is a tmpfs of this size, with the writable layer in `up`.
Result<MountedImage> mount_again(const std::string& base, std::size_t layers,
                                 const std::vector<std::string>& changes, const std::string& size);

/// Mounts a squashfs data file through its own `fuse`, as `data0`, `data1` and so on beside the
/// image.
Result<void> add_data(MountedImage& image, UniqueFd file);

}  // namespace spc::tool
