#pragma once

#include <string>
#include <vector>

#include "arguments.hpp"
#include "base/result.hpp"
#include "settings.hpp"

namespace spc::enroot {

/// Arguments and environment of the `scontainer run` that implements this `enroot start`.
struct StartCommand {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
};
Result<StartCommand> start_command(const EnrootSettings& settings,
                                   const EnrootArguments& arguments);

/// KEY=VALUE for `-e KEY` (from the environment) and `-e KEY=VALUE`.
Result<std::string> variable_for(const std::string& text);

/// `SRC:DST[:FLAGS]` of --mounts for an fstab entry with ':' between its fields:
/// SRC:DST[:TYPE[:OPTIONS]]. Empty: nothing to mount (`nofail`, and the source is missing).
Result<std::string> mount_for(const std::string& entry);

}  // namespace spc::enroot
