#pragma once

#include <string>

#include "hooks/cdi/spec.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// The CDI file of kind nvidia.com/gpu of a node: one device a GPU by its number in PCI order, one by its UUID, for each part
/// that MIG has made one by GPU:PART, and `all`. Files lie inside where they lie on the node without `driver_root`. The hooks
/// are nvidia-cdi-hook's, which other runtimes execute and 60-cdi does by itself.
CdiSpec nvidia_cdi_spec(const NvidiaDriver& driver, const std::string& driver_root);

}  // namespace spc
