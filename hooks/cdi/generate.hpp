#pragma once

#include <string>

#include "hooks/cdi/spec.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// The CDI file of kind nvidia.com/gpu for a node: one device per GPU by its index in PCI order,
/// one by its UUID, one per MIG device by GPU:PART, and `all`. Files keep their path without
/// `driver_root`. The hooks are nvidia-cdi-hook's, which other runtimes execute and 60-cdi
/// implements itself.
CdiSpec nvidia_cdi_spec(const NvidiaDriver& driver, const std::string& driver_root);

}  // namespace spc
