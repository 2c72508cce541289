#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Opens a file of the user's for reading, with his rights. It is an Error unless there is a squashfs in it that we can serve.
/// What is no regular file is refused without being opened, so that neither a FIFO nor a device can hold the task up.
Result<UniqueFd> open_data_file(const std::string& path);

}  // namespace spc
