#pragma once

#include <string>

#include "base/result.hpp"

namespace spc {

/// `docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]`, `dockerd://IMAGE[:TAG]`, `podman://IMAGE[:TAG]`. Only the scheme is looked
/// at here: scontainer takes all of it as it is.
Result<void> check_uri(const std::string& uri);

/// The file that `import` writes without -o: `nvidia+pytorch+24.03-py3.sqsh`; registry, user and digest are not in it.
std::string default_file_name(const std::string& uri);

}  // namespace spc
