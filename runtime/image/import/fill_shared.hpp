#pragma once

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/pull/agent_link.hpp"
#include "image/reference/request.hpp"

namespace spc {

/// Brings an image of a registry into the site's shared store and nowhere else, without
/// credentials. All that is there already is read and checked, too. Returns the digest of its
/// manifest.
Result<Digest> fill_shared_store(const ImportRequest& request, const Config& config,
                                 AgentLink& agent);

}  // namespace spc
