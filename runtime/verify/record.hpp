#pragma once

#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// Accepts an image record (protocol/image_record.hpp) only if it follows from the manifest whose
/// digest is the record's name. Manifest and configuration must match their digests, the layers
/// must be the manifest's under the store's names, merged or not, and the settings must be the
/// configuration's. ErrorKind::refused gives the reason. Every record in a node's store has a
/// manifest: for images of registries as served, for a user's archives as described by the user's
/// process. Records of files and directories never reach the store: root creates those, and they
/// are constant.
///
/// Not checked: the contents of layers, the facts found in the image's files (they are only shown),
/// and whether the layers are in the store, which the agent checks at each start.
///
/// Uses the parsers and the naming rules of `import`, unlike the check of layers, which shares no
/// code with the converter. The threat is an `import` that writes a false record, not a parser
/// error: a second JSON parser with different results would refuse valid images, or open a gap
/// between both. Contains no code of the converter.
Result<void> verify_record(const Digest& manifest, std::string_view record);

}  // namespace spc
