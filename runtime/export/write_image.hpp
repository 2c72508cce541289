#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "export/archive.hpp"

namespace spc {

// --- Apptainer files ---

/// Returns the files in which Apptainer stores an image's settings: below /.singularity.d a script
/// with the environment, one that runs the image, and the labels. Apptainer has no setting for the
/// work directory, so the run script enters it. `settings`: records `key=value\0`; `config`: the
/// image configuration.
std::vector<AddedFile> apptainer_files(const std::string& settings, const std::string& config);

// --- enroot files ---

/// Returns the files in which enroot stores an image's settings, so that enroot can start exported
/// images: /etc/rc, a shell script that runs the entrypoint, /etc/environment and /etc/fstab.
/// `settings`: records `key=value\0`; `config`: the image configuration.
std::vector<AddedFile> enroot_files(const std::string& settings, const std::string& config);

// --- SIF file ---

/// Turns the squashfs in `file`, which is open for reading and writing, into a SIF file: inserts
/// the header, the table and, unless it is empty, the configuration as `oci-config.json`. The
/// squashfs is the primary system partition for this machine's architecture. The same input gives
/// the same bytes: the image's identifier is derived from its content, its date is
/// $SOURCE_DATE_EPOCH or none.
Result<void> make_sif(int file, const std::string& config);

// --- image writer ---

/// Reports progress: bytes of the tree read so far.
using WriteProgress = std::function<void(std::uint64_t bytes)>;

/// Format of a written image: a squashfs, a squashfs in a SIF file, an OCI archive, or an OCI
/// archive with a single layer on top of another image.
enum class ImageForm { squashfs, sif, oci_archive, oci_layer };

/// The target file of an image and its format.
struct ImageTarget {
  std::string path;
  ImageForm form = ImageForm::squashfs;
};
/// Parses a target: `oci-archive:FILE` or a FILE that ends in .tar is an OCI archive,
/// `oci-layer:FILE` a layer, a FILE that ends in .sif a SIF, any other FILE a squashfs.
ImageTarget parse_image_target(const std::string& text);

/// Writes the tree below `root` as a squashfs, by layer-writer with `workers` compressing threads
/// (0: its own choice). `file`: empty, open for reading and writing. `layer_writer`: path of the
/// program; empty: the one beside this program, or the installed one. SIGPIPE must be ignored.
Result<void> write_squashfs(int root, const std::vector<AddedFile>& added, int file,
                            unsigned workers, const std::string& layer_writer,
                            const WriteProgress& progress = {});

/// A layer as a blob of an OCI image.
struct WrittenLayer {
  Digest digest;  ///< digest of the written bytes
  Digest diff_id;
  std::uint64_t size = 0;
  const char* type = "application/vnd.oci.image.layer.v1.tar";
};

/// Writer of a tree to a sink.
using TreeWriter = std::function<Result<void>(const ByteSink&)>;

/// Writes the tree as one layer at the current offset of `file`, compressed with zstd if
/// `compressed`.
Result<WrittenLayer> write_layer(const TreeWriter& tree, bool compressed, int file,
                                 const WriteProgress& progress = {});

/// Metadata of an OCI image.
struct OciImage {
  std::string config;       ///< the image configuration; empty: made from `settings`
  std::string settings;     ///< records `key=value\0`
  std::string name;         ///< name of the image in the archive
  bool compressed = false;  ///< the layer is compressed with zstd, for a push
};

/// Writes the tree as an OCI image layout with one layer, in a tar archive for skopeo, podman,
/// docker load and others. The same tree gives the same bytes.
Result<void> write_oci_archive(int root, const OciImage& image, int file,
                               const WriteProgress& progress = {});

/// The image of a registry that a changed container was made from.
struct ChangedImage {
  std::string manifest;
  std::string config;
  std::string name;  ///< REGISTRY/REPOSITORY, possibly with tag or digest
};

/// Writes the differences from `known` as one more layer on that image, in an OCI archive without
/// the image's own layers. The annotation kLayersOf (registry/manifest.hpp) says where those are.
Result<void> write_oci_layer(int root, const KnownTree& known, const ChangedImage& image, int file,
                             const WriteProgress& progress = {});

}  // namespace spc
