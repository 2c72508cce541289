#pragma once

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/agent_link.hpp"
#include "image/config.hpp"
#include "image/request.hpp"
#include "image/store.hpp"
#include "image/user_source_link.hpp"

namespace spc {

/// Brings an image into the store, as far as it is not there, and returns the digest under which its record lies.
/// `user` reads what only the user may read.
Result<Digest> import_image(const ImportRequest& request, const Config& config, const ImageStore& store, AgentLink& agent,
                            UserSourceLink& user);

}  // namespace spc
