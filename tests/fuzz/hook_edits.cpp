// Output of a site hook, and the context that built-in hooks read as programs.
// outcome 209 refused: a hook's plan with garbage: unknown key, relative path

#include "hooks/hook_json.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(hook_edits) {
  if (const auto call = context_from_json(text_of(data, size)); !call) {
    must_be_readable(call.error());
  } else {
    const auto again = context_from_json(context_to_json(*call));
    must(again.has_value(), "a context that was read can be written");
    must(again->stage == call->stage && again->prepared == call->prepared &&
             again->context.job == call->context.job &&
             again->context.settings == call->context.settings,
         "what is written is what was read");
  }
  const auto edits = edits_from_json(text_of(data, size));
  if (!edits) {
    must_be_readable(edits.error());
    return 0;
  }
  for (const MountEdit& mount : edits->mounts) {
    must(mount.source.empty() || mount.source.starts_with('/'), "sources are absolute");
    must(mount.target.empty() || mount.target.starts_with('/'), "targets are absolute");
  }
  for (const FileEdit& file : edits->files) must(file.mode <= 0777, "no file is setuid");
  for (const auto& [name, value] : edits->environment.set) {
    must(!name.empty() && name.find('=') == std::string::npos &&
             value.find('\0') == std::string::npos,
         "variables can exist");
  }
  const auto text = edits_to_json(*edits);
  must(text.has_value(), "what was read can be written");
  const auto again = edits_from_json(*text);
  must(again.has_value() && *again == *edits, "what is written is what was read");
  return 0;
}
