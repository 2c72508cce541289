#pragma once

#include <string>

#include "base/json/json.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// The same as edits_to_json() and edits_from_json(), as a part of another document.
Json edits_object(const Edits& edits);
Result<Edits> edits_of_object(const Json& value, const std::string& where);

}  // namespace spc
