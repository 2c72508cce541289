#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/reference/reference.hpp"

namespace spc {

/// Where an image comes from, as the user types it:
///
///     [docker://][USER@][REGISTRY/ or REGISTRY#]NAME[:TAG][@DIGEST]   a registry
///     oci:DIR[:REF]                                                   an OCI image layout
///     oci-archive:FILE[:REF]   docker-archive:FILE[:REF]              one in a tar archive, or what `docker save` writes
///     dockerd://NAME   podman://NAME                                  the local daemon's or the user's podman storage
///     ./PATH   ../PATH   ~/PATH   /PATH                               a file or directory, told apart by its content
///
/// A path stays as it was typed until it is opened, as the user, relative to the job's work directory. With a scheme in
/// front of it it ends at the first ':', as skopeo has it. Other schemes are refused by name; names that only a file would
/// have (`foo.sqsh`) are answered with "did you mean".
struct ImageLocation {
  enum class Kind { registry, oci_layout, oci_archive, docker_archive, docker_daemon, podman, path };

  Kind kind = Kind::registry;
  ImageReference name;    ///< registry
  std::string path;       ///< oci_layout, oci_archive, docker_archive, path
  std::string reference;  ///< REF within the layout or archive, or the NAME that the daemon knows; may be empty

  static Result<ImageLocation> parse(std::string_view text, std::string_view default_registry = "docker.io");
  /// One text for one image; parse() of it gives this location again (without USER). What the record of the image and messages show.
  [[nodiscard]] std::string canonical() const;
};

}  // namespace spc
