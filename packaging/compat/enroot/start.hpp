#pragma once

#include <string>
#include <vector>

#include "arguments.hpp"
#include "base/result.hpp"
#include "settings.hpp"

namespace spc {

/// Arguments and environment of the `scontainer run` that does what `enroot start` is asked for.
struct StartCommand {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
};
Result<StartCommand> start_command(const EnrootSettings& settings, const EnrootArguments& arguments);

/// KEY=VALUE of `-e KEY` (as it is outside) and `-e KEY=VALUE`.
Result<std::string> variable_for(const std::string& text);

/// `SRC:DST[:FLAGS]` of --mounts for an entry of fstab with ':' between its fields: SRC:DST[:TYPE[:OPTIONS]]. Empty: nothing is
/// to be mounted (`nofail`, and the source is not there).
Result<std::string> mount_for(const std::string& entry);

}  // namespace spc
