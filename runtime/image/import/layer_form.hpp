#pragma once

#include "image/config/config.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// File system and compression of new layers, as the site wants them or the kernel reads them. What
/// a user has for himself his own server reads, in either form.
LayerLimits form_of_layers(const Config& config, bool user_store);

}  // namespace spc
