#pragma once

#include <string>

#include "base/result.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/site_policy.hpp"

namespace spc {

/// `signature_policy` of images that no registry has: they carry no signature, so policy.json
/// admits them only with insecureAcceptAnything, for podman's transports or for `squashfs` and
/// `directory`, and by their real path. (Images of registries are import's matter.) The file is
/// read by a process of its own, `import trust`, as the user, who cannot trace it.
Result<void> check_trust(const ImageLocation& image, const SitePolicy& site);
/// Of an archive that was given by its path alone.
inline constexpr char kArchiveTransports[] = "oci-archive,docker-archive";
/// The same for a file or directory that was given by its path and is open: its content shows what
/// it is. All transports, with commas between them, have to admit it.
Result<void> check_opened_trust(int file, const std::string& typed, const char* transports,
                                const SitePolicy& site);
/// The same for an image that was given in one of these ways when a container was made of it, which
/// is stored.
Result<void> check_stored_trust(const ImageLocation& image, const SitePolicy& site);
/// What the site's own importer brings has no signature either, and nobody but it knows where it is
/// from.
Result<void> check_importer(const SitePolicy& site);

}  // namespace spc
