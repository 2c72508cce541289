#pragma once

#include <string>

#include "hooks/hook.hpp"
#include "hooks/json/strict.hpp"

namespace spc {

/// The same as edits_to_json() and edits_from_json(), as a part of another document.
StrictObject::Json edits_object(const Edits& edits);
Result<Edits> edits_of_object(const StrictObject::Json& value, const std::string& where);

}  // namespace spc
