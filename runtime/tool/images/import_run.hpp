#pragma once

#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/reference/request.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

/// Pulls an image into the caller's own store: runs `import` and takes the agent's part
/// (protocol/import.hpp). Returns the digest that names the image's record.
///
/// The converter is sandboxed here, too, and a layer is published only when `layer-verifier` has
/// accepted it. Files have no name until then: a crash leaves nothing behind.
Result<Digest> import_into_own_store(int store, const ImportRequest& request, PullDisplay& display);

/// An image where it comes from.
struct SourceImage {
  Digest digest;
  std::string config;  ///< as it is there
};
/// Stores nothing: `request` says so.
Result<SourceImage> look_at_source(int store, const ImportRequest& request, PullDisplay& display);

/// Brings it into the site's shared store, as the service user: the calling process is that.
/// `request` says so.
Result<Digest> import_into_shared_store(const ImportRequest& request, PullDisplay& display);

}  // namespace spc::tool
