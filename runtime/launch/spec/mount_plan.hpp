#pragma once

#include <cstdint>
#include <string>

namespace spc {

/// A host path or tmpfs, and its mount target.
struct MountPlan {
  std::string source;  ///< empty: drops what is mounted there
  std::string target;
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
  std::string asked_by;     ///< an option, a key of config.toml, "every container"
};

}  // namespace spc
