#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/reference/request.hpp"
#include "tool/images/import_run.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/arguments.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

struct Wanted {
  std::string image;  ///< as given by the user
  std::optional<Platform> platform;
  std::optional<PullPolicy> pull;  ///< empty: as in config.toml
  bool quiet = false;
  bool verbose = false;
};
/// The options --platform, --pull, --quiet and --verbose.
Result<Wanted> parse_wanted(const Arguments& arguments, const std::string& image);

/// The caller's own store with the image in it, pulled as `pull` requires. Stored images may be
/// used without asking anybody; if the registry cannot be reached, a warning says that the stored
/// image is used.
struct ObtainedImage {
  UniqueFd store;
  ListedImage image;
};
Result<ObtainedImage> obtain(const Places& places, const Config& config, const Wanted& wanted);

/// Whether an image's USER names somebody: containers run as the user who starts them.
inline bool is_other_user(std::string_view user) {
  return !user.empty() && !user.starts_with("root") && user != "0" && !user.starts_with("0:");
}

/// Digest and configuration of the image at its origin; nothing is stored.
Result<SourceImage> image_at_source(const Places& places, const Config& config,
                                    const Wanted& wanted);

}  // namespace spc::tool
