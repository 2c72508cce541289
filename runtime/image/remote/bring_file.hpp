#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/reference/location.hpp"
#include "image/reference/request.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// A file of a server that a job's step wants, and what is to be known of the step.
struct BroughtFile {
  std::string image;                  ///< as typed: `oras://...` or `https://...`
  std::optional<PullPolicy> pull;     ///< nothing: as in config.toml
  std::optional<std::int64_t> since;  ///< when the job was submitted: TagAge
  std::string cache;                  ///< the user's: KeptFiles
  std::optional<Digest>
      stored{};  ///< of the file that a stored container needs: it is used if it is still there
};

/// The path of the file among those that the user keeps; fetches it if it is not there, or if it is
/// another one at the server by now. Within a job it is not asked again. The site's rules for
/// registries hold for any server.
Result<std::string> bring_file(
    const BroughtFile& wanted, const Config& config, Log& log,
    const std::function<Result<std::optional<RegistrySecret>>(const ImageReference&)>& ask_user);

}  // namespace spc
