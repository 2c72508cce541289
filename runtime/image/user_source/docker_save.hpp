#pragma once

#include <memory>
#include <string>

#include "image/user_source/local_image.hpp"
#include "image/user_source/tar_files.hpp"

namespace spc::user_source {

/// The image `reference` (one of RepoTags) in an archive of the format that `docker save` wrote
/// before version 25, and many builders still write: manifest.json names a configuration and
/// uncompressed layers, some of which may be links to each other. A compressed layer is read once
/// for its digest, which is reported to `log`.
Result<std::unique_ptr<LocalImage>> open_docker_save(std::unique_ptr<TarFiles> files,
                                                     const std::string& reference,
                                                     const std::string& name, Log& log);

/// A tar archive of a root file system, as written by `docker export` and debootstrap: an image of
/// one layer with an empty configuration for this architecture. It is read once for its digest,
/// which is reported to `log`.
Result<std::unique_ptr<LocalImage>> open_root_archive(const TarFiles& files,
                                                      const std::string& name, Log& log);

}  // namespace spc::user_source
