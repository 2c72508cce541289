#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/reference/reference.hpp"

namespace spc {

/// Where an image comes from, as given by the user:
///
///     [docker://][USER@][REGISTRY/ or REGISTRY#]NAME[:TAG][@DIGEST]   a registry
///     oci:DIR[:REF]                                                   an OCI image layout
///     oci-archive:FILE[:REF]   docker-archive:FILE[:REF]              one in a tar archive, or the
///     output of `docker save` dockerd://NAME   podman://NAME                                  the
///     local daemon's or the user's podman storage oras://[USER@][REGISTRY/]NAME[:TAG][@DIGEST] a
///     SIF, squashfs or other image file in a registry https://HOST[:PORT]/PATH[#sha256=HEX] one at
///     a web server
///     ./PATH   ../PATH   ~/PATH   /PATH                               a file or directory, told
///     apart by its content
///
/// A path is kept as given until it is opened, as the user, relative to the job's work directory.
/// After a scheme it ends at the first ':', as in skopeo. Other schemes are refused by name; names
/// that look like files (`foo.sqsh`) are refused with "did you mean".
struct ImageLocation {
  enum class Kind {
    registry,
    oci_layout,
    oci_archive,
    docker_archive,
    docker_daemon,
    podman,
    path,
    remote_file
  };

  Kind kind = Kind::registry;
  ImageReference
      name;          ///< registry, remote_file: of https, the host, the path and the file's digest
  std::string path;  ///< oci_layout, oci_archive, docker_archive, path
  std::string
      reference;  ///< REF within the layout or archive, the daemon's NAME, or the URL; may be empty

  static Result<ImageLocation> parse(std::string_view text,
                                     std::string_view default_registry = "docker.io");
  /// The canonical text of an image; parse() of it gives this location again, without USER and
  /// without_secrets(). Used in records and messages.
  [[nodiscard]] std::string canonical() const;
};

}  // namespace spc
