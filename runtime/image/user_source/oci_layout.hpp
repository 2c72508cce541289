#pragma once

#include <memory>
#include <string>

#include "image/user_source/local_image.hpp"

namespace spc {

/// The image `reference` in an OCI image layout. `name` is the layout's in messages.
///
/// `reference` is what the annotation org.opencontainers.image.ref.name says, a name that docker or containerd gave it
/// (io.containerd.image.name), or a digest. Without it the only image is meant, or the whole list if that names platforms
/// instead of images.
Result<std::unique_ptr<LocalImage>> open_oci_layout(std::unique_ptr<NamedFiles> files, const std::string& reference,
                                                    const std::string& name);

/// The error for a reference that is missing or not there: it lists what there is.
Error no_such_image(const std::string& name, const std::string& reference, const std::vector<std::string>& there);
/// Whether two names mean one image: `x`, `docker.io/library/x:latest`.
bool is_same_name(const std::string& one, const std::string& other);

}  // namespace spc
