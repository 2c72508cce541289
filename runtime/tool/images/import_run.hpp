#pragma once

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/reference/request.hpp"
#include "tool/terminal.hpp"

namespace spc {

/// Brings an image into the caller's own store: runs `import` and plays for it what the agent is on a node
/// (base/import_protocol.hpp). Returns the digest under which the image's record lies.
///
/// The program that converts a layer is sandboxed here, too, and a layer is published only when `layer-verifier` has
/// accepted it. All files are nameless until then: whatever dies leaves nothing.
Result<Digest> import_into_own_store(int store, const ImportRequest& request, PullDisplay& display);

}  // namespace spc
