#pragma once

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/pull/agent_link.hpp"
#include "image/reference/request.hpp"
#include "image/registry/user_source_link.hpp"
#include "image/store/store.hpp"

namespace spc {

/// Adds an image to the store, unless it is there, and returns the digest that names its record.
/// `user` reads what only the user may read.
Result<Digest> import_image(const ImportRequest& request, const Config& config,
                            const ImageStore& store, AgentLink& agent, UserSourceLink& user);

}  // namespace spc
