#pragma once

#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/reference/request.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// Brings the file of `image` (ImageLocation::Kind::remote_file, as typed), by a process without any privilege that has the user's ids
/// and the job's environment, into the user's cache: the path there, whose last part is the file's digest.
Result<std::string> bring_remote_file(const std::string& image, PullPolicy pull, const LaunchRequest& request,
                                      const std::map<std::string, std::string>& environment, Log& log);

}  // namespace spc
