#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/reference/request.hpp"

namespace spc {

struct RemoteFileRequest {
  std::string image;  ///< as typed: ImageLocation::Kind::remote_file
  PullPolicy pull;
  std::optional<std::int64_t> since;  ///< as LaunchRequest has it
  std::string
      stored;  ///< the digest of the file that a stored container needs; empty: there is none
};

/// Brings the file, by a process without any privilege that has the user's ids and the job's
/// environment, into the user's cache. Returns the path there, whose last part is the file's
/// digest.
Result<std::string> bring_remote_file(const RemoteFileRequest& wanted,
                                      const std::map<std::string, std::string>& environment,
                                      Log& log);

}  // namespace spc
