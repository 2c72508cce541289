#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/export/archive.hpp"

namespace spc {

/// Reports progress: bytes of the tree read so far.
using WriteProgress = std::function<void(std::uint64_t bytes)>;

/// What an image is written as: a squashfs, the same in a SIF file, an OCI archive, or one with a
/// single layer that belongs on another image.
enum class ImageForm { squashfs, sif, oci_archive, oci_layer };

/// The target file of an image, and its format by name.
struct ImageTarget {
  std::string path;
  ImageForm form = ImageForm::squashfs;
};
/// `oci-archive:FILE`, or a FILE that ends in .tar: an OCI archive; `oci-layer:FILE`; one that ends
/// in .sif; otherwise a squashfs.
ImageTarget parse_image_target(const std::string& text);

/// The tree below `root` as a squashfs, written by layer-writer with `workers` compressing threads
/// (0: its own choice). `file`: empty, open for reading and writing. `layer_writer`: the program,
/// if not the one beside this program or the installed one. SIGPIPE must be ignored.
Result<void> write_squashfs(int root, const std::vector<AddedFile>& added, int file,
                            unsigned workers, const std::string& layer_writer,
                            const WriteProgress& progress = {});

/// What an OCI image says beside its files.
struct OciImage {
  std::string config;       ///< the image configuration; empty: made from `settings`
  std::string settings;     ///< records `key=value\0`
  std::string name;         ///< of the image in the archive
  bool compressed = false;  ///< the layer is a zstd file: to be sent somewhere
};

/// The same tree as an OCI image layout with one layer, in a tar archive: for skopeo, podman,
/// docker load and others. The same tree gives the same bytes.
Result<void> write_oci_archive(int root, const OciImage& image, int file,
                               const WriteProgress& progress = {});

/// An image of a registry that has been changed.
struct ChangedImage {
  std::string manifest;
  std::string config;
  std::string name;  ///< REGISTRY/REPOSITORY, whatever follows
};

/// What differs from `known` as one more layer on that image, in an OCI archive without the image's
/// own layers, which says where they are: kLayersOf (image/registry/manifest.hpp).
Result<void> write_oci_layer(int root, const KnownTree& known, const ChangedImage& image, int file,
                             const WriteProgress& progress = {});

}  // namespace spc
