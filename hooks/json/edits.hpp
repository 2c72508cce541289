#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// What a hook that is a program prints: spank-container-hooks(7) has the form. Everything that is
/// not as it is at rest is written, so an empty Edits is `{}`. An error for text that is not UTF-8.
Result<std::string> edits_to_json(const Edits& edits);

/// Reads it strictly: a key that is not known, a value of another type, a relative path, a variable
/// or limit that cannot exist are refused, naming the key. Text of nothing but white space is an
/// empty Edits.
Result<Edits> edits_from_json(std::string_view text);

/// A stage can say only what can still be done: in "create" mounts may be moved or left out (an
/// empty target) but not added, in "task" there are variables, limits and words alone. `prepared`:
/// what the hook said in "prepare".
Result<void> check_stage(const Edits& edits, std::string_view stage, const Edits& prepared);

}  // namespace spc
