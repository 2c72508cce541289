#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// One call of a hook, as a program of its own gets it on standard input: spank-container-hooks(7)
/// has the form.
struct HookCall {
  std::string stage;  ///< prepare, create, task, start, stop
  HookContext context;
  Edits prepared;  ///< in create: what the hook said in prepare
  /// In create and task: where the image's files can be seen; empty: they cannot.
  /// context.open_in_image reads there.
  std::string image_root;
};

/// Bytes that are not UTF-8 are replaced by U+FFFD: nothing of it is lost but what JSON cannot say.
std::string context_to_json(const HookCall& call);

/// Reads it strictly, as edits_from_json() does. What is not there is as in an empty context.
Result<HookCall> context_from_json(std::string_view text);

}  // namespace spc
