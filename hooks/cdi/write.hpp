#pragma once

#include <string>

#include "hooks/cdi/spec.hpp"

namespace spc {

/// A spec as the text of a CDI file; parse_cdi_spec() restores it. Network interfaces and intelRdt
/// are not written: they are only read to be refused.
std::string cdi_to_json(const CdiSpec& spec);
/// In nvidia-ctk's format.
std::string cdi_to_yaml(const CdiSpec& spec);

}  // namespace spc
