#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hooks/hook.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// A file of the driver that 98-nvidia offers as a mount.
struct NvidiaOffer {
  MountEdit mount;                       ///< as `prepare` offers it; no two have one target
  std::uint32_t uses = 0;                ///< NvidiaUse
  std::optional<NvidiaLibrary> library;  ///< set for a library
};

/// What `prepare` of 98-nvidia finds on the host.
struct NvidiaNode : HostFindings {
  NvidiaDriver driver;
  std::set<std::string> accessible;  ///< device nodes that the step may open
  std::vector<NvidiaOffer> offers;
};

}  // namespace spc
