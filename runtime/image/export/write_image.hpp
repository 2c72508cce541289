#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/export/archive.hpp"

namespace spc {

/// What is told of the work: bytes of the tree that have been read.
using WriteProgress = std::function<void(std::uint64_t bytes)>;

/// A file that becomes a container image, whatever its name says about the format.
struct ImageTarget {
  std::string path;
  bool oci = false;  ///< an OCI archive; else a squashfs
};
/// `oci-archive:FILE`, or FILE ends in .tar: an OCI archive; everything else is a squashfs.
ImageTarget parse_image_target(const std::string& text);

/// The tree below `root` as a squashfs, by the program that converts layers, with `workers` compressing threads (0: its own
/// choice). `file`: empty, open for reading and writing. `layer_writer`: the program, if not the one beside this program or
/// where it is installed. SIGPIPE must be ignored.
Result<void> write_squashfs(int root, const std::vector<AddedFile>& added, int file, unsigned workers,
                            const std::string& layer_writer, const WriteProgress& progress = {});

/// The same tree as an OCI image layout with one layer, in a tar archive: for skopeo, podman, docker load and others.
/// `config`: the image's configuration; empty: it is made of `settings`, records `key=value\0`. `name`: what the archive says
/// that it is.
Result<void> write_oci_archive(int root, const std::string& config, const std::string& settings, const std::string& name,
                               int file, const WriteProgress& progress = {});

}  // namespace spc
