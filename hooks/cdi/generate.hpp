#pragma once

#include <string>

#include "hooks/cdi/spec.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

// --- write ---

/// Returns a spec as the text of a CDI file. parse_cdi_spec() restores it. Network interfaces and
/// intelRdt are not written: the reader knows them only to refuse them.
std::string cdi_to_json(const CdiSpec& spec);
/// Returns the same in nvidia-ctk's format.
std::string cdi_to_yaml(const CdiSpec& spec);

// --- generate ---

/// Returns the CDI file of kind nvidia.com/gpu for a node: one device per GPU by its index in PCI
/// order, one by its UUID, one per MIG device by GPU:PART, and `all`. Paths are those of the files
/// without `driver_root`. The hooks are nvidia-cdi-hook's, which other runtimes execute and 60-cdi
/// implements itself.
CdiSpec nvidia_cdi_spec(const NvidiaDriver& driver, const std::string& driver_root);

}  // namespace spc
