#pragma once

#include <string>

#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/export/write_image.hpp"
#include "tool/images/local_image.hpp"

namespace spc::tool {

/// An image that can be mounted, with what an archive of it says.
struct ArchiveSource {
  OpenedImage opened;
  std::string config;  ///< the image's configuration; empty: it has none
};

/// From the caller's store, or a squashfs, SIF or directory of the user.
Result<ArchiveSource> open_archive_source(const Places& places, const Config& config,
                                          const std::string& name);

/// The settings of a mounted image, as records `key=value\0`. Those of a file system that is all
/// there is are read from its files: the environment, the work directory, and the script that runs
/// its command, which becomes its entrypoint. Needs a user namespace.
Result<std::string> settings_of(const OpenedImage& opened, int root);

/// Writes the image as an OCI archive with one compressed layer into `file`; in a process of its
/// own, so that the caller stays where it is.
Result<void> write_archive_apart(const Places& places, ArchiveSource source, int file);

}  // namespace spc::tool
