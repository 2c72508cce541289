#include "hooks/json/context.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file.hpp"
#include "base/json/json_object.hpp"
#include "hooks/json/edits_object.hpp"

namespace spc {
namespace {

constexpr std::array<std::string_view, 5> kHookStages{"prepare", "create", "task", "start", "stop"};

Json json_of_settings(const HookContext& context) {
  Json settings = Json::object();
  for (const auto& [key, value] : context.settings) settings[key].push_back(value);
  return settings;
}

Result<void> read_settings(JsonObject& call, HookContext& context) {
  const Json* settings = call.take_any("settings");
  if (settings == nullptr) return {};
  auto object = SPC_TRY(JsonObject::of(*settings, "settings"));
  for (const auto& [key, value] : settings->members()) {
    std::vector<std::string> values;
    SPC_TRY(object.take(key.c_str(), values));
    for (std::string& text : values) context.settings.emplace(key, std::move(text));
  }
  return {};
}

Result<void> read_image(JsonObject& call, HookCall& into) {
  const Json* image = call.take_any("image");
  if (image == nullptr) return {};
  auto object = SPC_TRY(JsonObject::of(*image, "image"));
  SPC_TRY(object.take("name", into.context.image_name));
  SPC_TRY(object.take("digest", into.context.image_digest));
  SPC_TRY(object.take("environment", into.context.image));
  SPC_TRY(object.take_path("root", into.image_root));
  return object.nothing_left();
}

Result<void> read_user(JsonObject& call, HookContext& context) {
  const Json* user = call.take_any("user");
  if (user == nullptr) return {};
  auto object = SPC_TRY(JsonObject::of(*user, "user"));
  std::uint64_t uid = context.uid;
  std::uint64_t gid = context.gid;
  SPC_TRY(object.take("uid", uid));
  SPC_TRY(object.take("gid", gid));
  if (uid > UINT32_MAX) return object.problem("uid", "is too large");
  if (gid > UINT32_MAX) return object.problem("gid", "is too large");
  context.uid = static_cast<uid_t>(uid);
  context.gid = static_cast<gid_t>(gid);
  SPC_TRY(object.take("name", context.user));
  SPC_TRY(object.take("home", context.home));
  return object.nothing_left();
}

Result<void> read_container(JsonObject& call, HookContext& context) {
  const Json* container = call.take_any("container");
  if (container == nullptr) return {};
  auto object = SPC_TRY(JsonObject::of(*container, "container"));
  SPC_TRY(object.take("remapRoot", context.remap_root));
  SPC_TRY(object.take("ownNet", context.own_net));
  SPC_TRY(object.take("ownIpc", context.own_ipc));
  SPC_TRY(object.take("ownPid", context.own_pid));
  SPC_TRY(object.take("ownUts", context.own_uts));
  SPC_TRY(object.take("ownContainer", context.own_container));
  SPC_TRY(object.take("writable", context.writable));
  SPC_TRY(object.take("mountsHome", context.mounts_home));
  SPC_TRY(object.take("hasBindMounts", context.has_bind_mounts));
  return object.nothing_left();
}

/// As a path inside: links and `..` stay below the root.
UniqueFd open_below(const std::string& root, const char* path, int flags) {
  const UniqueFd directory(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return {};
  const int more =
      (flags & O_PATH) != 0 ? 0 : O_NONBLOCK;  // the kernel takes no more beside O_PATH
  return open_resolved(directory.get(), path, flags | more,
                       RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

}  // namespace

std::string context_to_json(const HookCall& call) {
  const HookContext& context = call.context;
  Json object{{"version", 1},
              {"stage", call.stage},
              {"job", context.job},
              {"settings", json_of_settings(context)}};
  object["image"] = Json{{"name", context.image_name},
                         {"digest", context.image_digest},
                         {"environment", context.image}};
  if (!call.image_root.empty()) object["image"]["root"] = call.image_root;
  object["environment"] = context.environment;
  object["user"] = Json{
      {"uid", context.uid}, {"gid", context.gid}, {"name", context.user}, {"home", context.home}};
  if (context.gpu) object["gpu"] = *context.gpu;
  object["devices"] = context.devices;
  object["mpi"] = context.mpi;
  object["command"] = context.command;
  object["container"] = Json{{"remapRoot", context.remap_root},
                             {"ownNet", context.own_net},
                             {"ownIpc", context.own_ipc},
                             {"ownPid", context.own_pid},
                             {"ownUts", context.own_uts},
                             {"ownContainer", context.own_container},
                             {"writable", context.writable},
                             {"mountsHome", context.mounts_home},
                             {"hasBindMounts", context.has_bind_mounts}};
  if (!context.host_root.empty()) object["hostRoot"] = context.host_root;
  if (context.granted_devices) object["grantedDevices"] = *context.granted_devices;
  if (call.prepared != Edits()) object["prepared"] = edits_object(call.prepared);
  return object.str(1);
}

Result<HookCall> context_from_json(std::string_view text) {
  const Json document = SPC_TRY(JsonObject::parse(text));
  auto object = SPC_TRY(JsonObject::of(document));
  HookCall call;
  HookContext& context = call.context;
  std::uint64_t version = 1;
  SPC_TRY(object.take("version", version));
  if (version != 1) return object.problem("version", "is not 1");
  SPC_TRY(object.take("stage", call.stage));
  if (std::find(kHookStages.begin(), kHookStages.end(), call.stage) == kHookStages.end()) {
    return object.problem(
        "stage", in_quotes(call.stage) + " is not a stage (prepare, create, task, start, stop)");
  }
  SPC_TRY(object.take("job", context.job));
  SPC_TRY(read_settings(object, context));
  SPC_TRY(read_image(object, call));
  SPC_TRY(object.take("environment", context.environment));
  SPC_TRY(read_user(object, context));
  if (object.has("gpu")) {
    bool gpu = false;
    SPC_TRY(object.take("gpu", gpu));
    context.gpu = gpu;
  }
  SPC_TRY(object.take("devices", context.devices));
  SPC_TRY(object.take("mpi", context.mpi));
  SPC_TRY(object.take("command", context.command));
  SPC_TRY(read_container(object, context));
  SPC_TRY(object.take_path("hostRoot", context.host_root));
  if (object.has("grantedDevices")) {
    std::set<std::string> granted;
    SPC_TRY(object.take("grantedDevices", granted));
    context.granted_devices = std::move(granted);
  }
  if (const Json* prepared = object.take_any("prepared"))
    call.prepared = SPC_TRY(edits_of_object(*prepared, "prepared"));
  object.take_any("gpu");
  object.take_any("grantedDevices");
  SPC_TRY(object.nothing_left());
  if (!call.image_root.empty()) {
    context.open_in_image = [root = call.image_root](const char* path, int flags) {
      return open_below(root, path, flags);
    };
  }
  return call;
}

}  // namespace spc
