#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Opens a regular file of the site, a configuration or a program, for reading. It, each directory
/// above it up to / and each link on the way must be owned by root (or `owner`) and writable by the
/// owner only; only in a directory with the sticky bit may others create files. `what` precedes the
/// path in messages: `configuration`. A missing file is ErrorKind::not_found.
Result<UniqueFd> open_trusted_file(const std::string& path, const std::string& what,
                                   uid_t owner = 0);

/// The same for a directory.
Result<UniqueFd> open_trusted_directory(const std::string& path, const std::string& what,
                                        uid_t owner = 0);

}  // namespace spc
