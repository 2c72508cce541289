#pragma once

#include <string_view>

#include "base/json/json.hpp"

namespace spc {

/// Parses a JSON object that a registry, a program or a file of the user's has given, within
/// JsonLimits. `what` names the document in messages, for example `manifest of
/// "registry:5000/x:1"`.
Result<Json> parse_json_object(std::string_view text, std::string_view what);

}  // namespace spc
