#pragma once

#include <cstdint>
#include <string>

namespace spc {

/// Something of the host, or a new file system, and where it appears.
struct MountPlan {
  std::string source;  ///< empty: what is mounted there by then is taken away
  std::string target;
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
  std::string asked_by;     ///< an option, a key of config.toml, "every container"
};

}  // namespace spc
