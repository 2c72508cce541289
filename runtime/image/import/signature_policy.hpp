#pragma once

#include <string_view>

#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/reference/reference.hpp"

namespace spc {

/// Whether the site lets this image be used. `manifest` are the very bytes whose layers are converted or mounted, after their
/// digest has been checked, so that nothing can change between the decision and the use. Today's only rule is that the user
/// has pinned the digest (`require_digest`); signatures belong here, too.
Result<void> policy_decides(std::string_view manifest, const ImageReference& reference, const Config& config);

}  // namespace spc
