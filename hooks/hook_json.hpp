#pragma once

#include <string>
#include <string_view>

#include "base/json.hpp"
#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- edits object ---

/// Convert like edits_to_json() and edits_from_json(), as a part of another document.
Json edits_object(const Edits& edits);
Result<Edits> edits_of_object(const Json& value, const std::string& where);

// --- context ---

/// One call of a hook, in the form that a separate program gets on standard input;
/// spank-container-hooks(7) describes it.
struct HookCall {
  std::string stage;  ///< prepare, create, task, start, stop
  HookContext context;
  Edits prepared;  ///< in create: the hook's output of prepare
  /// In create and task: the directory where the image's files are visible, which
  /// context.open_in_image reads; empty: they are not visible.
  std::string image_root;
};

/// Writes a context. Bytes that are not UTF-8 are replaced by U+FFFD; everything else is preserved.
std::string context_to_json(const HookCall& call);

/// Reads a context as strictly as edits_from_json(). Missing keys have the values of an empty
/// context.
Result<HookCall> context_from_json(std::string_view text);

// --- edits ---

/// Returns the output of a hook program in the form of spank-container-hooks(7). Default values are
/// left out, so an empty Edits is `{}`. An error for text that is not UTF-8.
Result<std::string> edits_to_json(const Edits& edits);

/// Reads the output of a hook program. Refuses an unknown key, a value of another type, a relative
/// path, and an impossible variable or limit. The error names the key. White space alone is an
/// empty Edits.
Result<Edits> edits_from_json(std::string_view text);

/// Refuses edits that a stage does not allow: in "create" mounts may be moved or left out (an empty
/// target) but not added; in "task" only variables, limits and messages are allowed. `prepared`:
/// the hook's output in "prepare".
Result<void> check_stage(const Edits& edits, std::string_view stage, const Edits& prepared);

}  // namespace spc
