#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

using Json = nlohmann::json;

/// Parses a JSON object from an untrusted source. Also refuses duplicate keys (readers differ in which one wins), more than
/// 32 levels, more than 200,000 values, a byte order mark, and trailing data.
/// `what` names the document in messages, for example `manifest of "registry:5000/x:1"`.
Result<Json> parse_json_object(std::string_view text, std::string_view what);

/// Members of an object. An absent or null member is "not there"; one of another type is an error that names it.
const Json* find_member(const Json& object, const char* key);
Result<std::optional<std::string>> text_member(const Json& object, const char* key);
Result<std::optional<std::uint64_t>> number_member(const Json& object, const char* key);
/// The elements of an array of objects; empty when not there.
Result<const Json::array_t*> array_member(const Json& object, const char* key);

}  // namespace spc
