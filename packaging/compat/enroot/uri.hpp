#pragma once

#include <string>

#include "base/result.hpp"

namespace spc::enroot {

/// `docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]`, `dockerd://IMAGE[:TAG]`,
/// `podman://IMAGE[:TAG]`. Only the scheme is checked here: scontainer accepts the rest as it is.
Result<void> check_uri(const std::string& uri);

/// The default output file of `import`: `nvidia+pytorch+24.03-py3.sqsh`, without registry, user and
/// digest.
std::string default_file_name(const std::string& uri);

}  // namespace spc::enroot
