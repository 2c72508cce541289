#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "image/signature/requirement_check.hpp"

namespace spc {

/// The signatures that have admitted an image, as they lie beside its record: the newest first.
std::string serialize(const std::vector<ImageSignature>& signatures);
/// What is malformed is left out: it must be got again.
std::vector<ImageSignature> parse_kept_signatures(std::string_view records);
/// `added` and those of `kept` that are others, as many as are kept.
std::vector<ImageSignature> merged(std::vector<ImageSignature> added,
                                   const std::vector<ImageSignature>& kept);

}  // namespace spc
