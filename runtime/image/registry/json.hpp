#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

using Json = nlohmann::json;

/// Parses a JSON object from an untrusted source. Refused besides what is not JSON: keys given twice (readers differ
/// in which one counts), more than 32 levels, more than 200,000 values, a byte order mark, anything after the object.
/// `what` names the document in messages, for example `manifest of "registry:5000/x:1"`.
Result<Json> parse_json_object(std::string_view text, std::string_view what);

/// Members of an object. A member that is absent or null is "not there"; one of another type is an error naming it.
const Json* find_member(const Json& object, const char* key);
Result<std::optional<std::string>> text_member(const Json& object, const char* key);
Result<std::optional<std::uint64_t>> number_member(const Json& object, const char* key);
/// The elements of an array of objects; empty when not there.
Result<const Json::array_t*> array_member(const Json& object, const char* key);

}  // namespace spc
