#pragma once

#include <string>

#include "hooks/cdi/spec.hpp"

namespace spc {

/// A spec as text of a CDI file, which parse_cdi_spec() reads as the same. Names of network interfaces and intelRdt are not
/// written: they are only read to be refused.
std::string cdi_to_json(const CdiSpec& spec);
/// In the form that nvidia-ctk writes.
std::string cdi_to_yaml(const CdiSpec& spec);

}  // namespace spc
