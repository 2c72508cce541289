#pragma once

#include <memory>
#include <string>

#include "image/user_source/local_image.hpp"

namespace spc::user_source {

/// The image `reference` in an OCI image layout. `name` names the layout in messages.
///
/// `reference` is the annotation org.opencontainers.image.ref.name, a name given by docker or
/// containerd (io.containerd.image.name), or a digest. Without it: the only image, or the whole
/// index if it lists platforms instead of images.
Result<std::unique_ptr<LocalImage>> open_oci_layout(std::unique_ptr<NamedFiles> files,
                                                    const std::string& reference,
                                                    const std::string& name);

/// The error for a missing or unknown reference: lists the images.
Error no_such_image(const std::string& name, const std::string& reference,
                    const std::vector<std::string>& there);
/// Whether two names mean the same image: `x`, `docker.io/library/x:latest`.
bool is_same_name(const std::string& one, const std::string& other);

}  // namespace spc::user_source
