#include "hook_engine/hook_description.hpp"

#include <algorithm>
#include <array>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json/json_object.hpp"
#include "base/trusted_file.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostText = 256 << 10;
constexpr std::uint64_t kMostSeconds = 24 * 60 * 60;
constexpr std::array<std::string_view, 5> kOurStages{"prepare", "create", "task", "start", "stop"};
/// Not poststart: there is no place where a task already runs and somebody of ours is still there.
constexpr std::array<std::string_view, 5> kOciStages{"prestart", "createRuntime", "createContainer",
                                                     "startContainer", "poststop"};

Result<void> read_hook(JsonObject& document, HookDescription& into) {
  const auto* member = document.take_any("hook");
  if (member == nullptr) return {};
  auto hook = SPC_TRY(JsonObject::of(*member, "hook"));
  SPC_TRY(hook.take_path("path", into.path));
  SPC_TRY(hook.take("args", into.args));
  SPC_TRY(hook.take("env", into.env));
  std::uint64_t seconds = 0;
  SPC_TRY(hook.take("timeout", seconds));
  if (hook.has("timeout")) {
    if (seconds == 0 || seconds > kMostSeconds)
      return hook.problem("timeout", "is not between 1 and 86400 seconds");
    into.timeout = std::chrono::seconds(seconds);
  }
  return hook.nothing_left();
}

Result<void> read_when(JsonObject& document, HookConditions& into) {
  const auto* member = document.take_any("when");
  if (member == nullptr) return {};
  auto when = SPC_TRY(JsonObject::of(*member, "when"));
  bool flag = false;
  SPC_TRY(when.take("always", flag));
  if (when.has("always")) into.always = flag;
  SPC_TRY(when.take("hasBindMounts", flag));
  if (when.has("hasBindMounts")) into.has_bind_mounts = flag;
  SPC_TRY(when.take("annotations", into.annotations));
  SPC_TRY(when.take("commands", into.commands));
  SPC_TRY(when.take("env", into.environment));
  SPC_TRY(when.nothing_left());
  return into.check();
}

template <typename List>
Result<void> check_stages(const JsonObject& document, const std::vector<std::string>& stages,
                          const List& known) {
  for (const std::string& stage : stages) {
    if (std::find(known.begin(), known.end(), stage) != known.end()) continue;
    std::string list;
    for (const auto name : known) list += (list.empty() ? "" : ", ") + std::string(name);
    return document.problem("stages", formatted("{} is not a stage ({})", in_quotes(stage), list));
  }
  return {};
}

}  // namespace

Result<HookDescription> HookDescription::parse(std::string_view text) {
  const auto json = SPC_TRY(JsonObject::parse(text));
  auto document = SPC_TRY(JsonObject::of(json));
  HookDescription description;
  std::string version = "1.0.0";
  SPC_TRY(document.take("version", version));
  if (version != "1.0.0") return document.problem("version", in_quotes(version) + " is not 1.0.0");
  SPC_TRY(read_hook(document, description));
  SPC_TRY(read_when(document, description.when));
  SPC_TRY(document.take("stages", description.stages));
  SPC_TRY(document.take("optional", description.optional));
  SPC_TRY(document.nothing_left());
  if (description.path.empty()) {
    SPC_TRY(check_stages(document, description.stages, kOurStages));
  } else {
    SPC_TRY(check_stages(document, description.stages, kOciStages));
    if (description.stages.empty()) return document.problem("stages", "is missing");
    if (description.when.empty()) return document.problem("when", "is missing");
  }
  return description;
}

Result<HookDescription> HookDescription::read(const std::string& path, uid_t owner) {
  const auto file = SPC_TRY(open_trusted_file(path, "hook", owner));
  const auto text = SPC_TRY_DURING(in_quotes(path), read_file(file.get(), kMostText));
  return SPC_TRY_DURING(in_quotes(path), parse(text));
}

}  // namespace spc
