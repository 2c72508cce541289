#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::tool {

/// An image that the site recommends: `NAME.toml` in the directory catalogue.d beside the site's
/// config.toml, with the keys `image`, what --container-image takes, and `description`, one line.
struct CatalogueEntry {
  std::string name;
  std::string image;
  std::string description;
};

/// By name; empty if the site has none. A file that is wrong is an error that names it.
Result<std::vector<CatalogueEntry>> read_catalogue();

}  // namespace spc::tool
