#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hooks/hook.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// A driver file that 98-nvidia requests as a mount.
struct NvidiaOffer {
  MountEdit mount;                       ///< as requested in `prepare`; targets are unique
  std::uint32_t uses = 0;                ///< NvidiaUse
  std::optional<NvidiaLibrary> library;  ///< set for a library
};

/// What 98-nvidia finds on the host in `prepare`.
struct NvidiaNode : HostFindings {
  NvidiaDriver driver;
  std::set<std::string> accessible;  ///< device nodes that the step may open
  std::vector<NvidiaOffer> offers;
  bool has_mps = false;  ///< its daemon runs
};

}  // namespace spc
