#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Opens a file of the user for reading, with the user's rights. An Error unless it is a squashfs
/// we can serve. Anything but a regular file is refused without being opened, so that no FIFO or
/// device can block the task.
Result<UniqueFd> open_data_file(const std::string& path);

/// An Error if a process serves this file (FUSE), whoever runs it: one that does not answer would
/// keep our server, and root's agent, which passes the file on and closes it, from ever ending.
/// Whoever asks may wait for it, too.
Result<void> refuse_fuse(int file);

}  // namespace spc
