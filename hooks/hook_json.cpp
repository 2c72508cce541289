#include "hooks/hook_json.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"

namespace spc {

// --- context ---

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

/// Opens a path inside the root: links and `..` stay below it.
UniqueFd open_below(const std::string& root, const char* path, int flags) {
  const UniqueFd directory(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return {};
  // The kernel accepts no further flags with O_PATH.
  const int more = (flags & O_PATH) != 0 ? 0 : O_NONBLOCK;
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
  object["annotations"] = context.annotations;
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
  SPC_TRY(object.take("annotations", context.annotations));
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

// --- edits ---

namespace {

/// Limits of setrlimit(2) that the engine sets.
constexpr std::array<std::string_view, 8> kLimits{"memlock", "nofile", "stack", "core",
                                                  "nproc",   "as",     "data",  "fsize"};

template <typename Value>
void put(Json& object, const char* key, const Value& value) {
  if (value != Value()) object[key] = value;
}

void put(Json& object, const char* key, bool value, bool at_rest) {
  if (value != at_rest) object[key] = value;
}

template <typename List, typename ToJson>
void put_each(Json& object, const char* key, const List& list, const ToJson& to_json) {
  for (const auto& element : list) object[key].push_back(to_json(element));
}

Json json_of(const Edits::Environment& environment) {
  Json object = Json::object();
  put(object, "unset", environment.unset);
  put(object, "set", environment.set);
  put(object, "prepend", environment.prepend);
  put(object, "default", environment.defaults);
  return object;
}

Json json_of(const MountEdit& mount) {
  Json object{{"target", mount.target}};
  put(object, "source", mount.source);
  put(object, "readOnly", mount.read_only, true);
  put(object, "noExec", mount.no_exec, false);
  put(object, "optional", mount.optional, false);
  put(object, "size", mount.size);
  return object;
}

Json json_of(const DeviceEdit& device) {
  Json object{{"path", device.path}};
  put(object, "source", device.source);
  put(object, "optional", device.optional, false);
  return object;
}

Json json_of(const FileEdit& file) {
  char mode[16];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(file.mode));
  Json object{{"path", file.path}, {"content", file.content}};
  if (file.mode != FileEdit().mode) object["mode"] = mode;
  return object;
}

Json json_of(const LibraryEdit& library) {
  Json object{{"soname", library.soname}, {"path", library.path}};
  put(object, "before", library.before, true);
  if (library.machine != 0) object["machine"] = library.machine;
  return object;
}

Json json_of(const LibraryDirectoryEdit& directory) {
  Json object{{"path", directory.path}};
  put(object, "before", directory.before, true);
  return object;
}

Json json_of(const LimitEdit& limit) {
  Json object{{"name", limit.name}, {"soft", limit.soft}};
  if (limit.soft == UINT64_MAX) object["soft"] = "unlimited";
  return object;
}

Json json_of(const ProgramEdit& program) {
  Json object{{"path", program.path}};
  put(object, "args", program.args);
  put(object, "env", program.env);
  if (program.timeout != 0) object["timeout"] = program.timeout;
  return object;
}

Result<void> check_name(const JsonObject& object, const char* key, const std::string& name) {
  if (!name.empty() && name.find('=') == std::string::npos) return {};
  return object.problem(key, in_quotes(name) + " is not a variable name");
}

Result<void> read_environment(JsonObject& edits, Edits::Environment& environment) {
  const Json* member = edits.take_any("environment");
  if (member == nullptr) return {};
  auto object = SPC_TRY(JsonObject::of(*member, edits.name_of("environment")));
  SPC_TRY(object.take("unset", environment.unset));
  SPC_TRY(object.take("set", environment.set));
  SPC_TRY(object.take("prepend", environment.prepend));
  SPC_TRY(object.take("default", environment.defaults));
  for (const std::string& name : environment.unset) SPC_TRY(check_name(object, "unset", name));
  for (const auto& [name, value] : environment.set) SPC_TRY(check_name(object, "set", name));
  for (const auto& [name, value] : environment.prepend)
    SPC_TRY(check_name(object, "prepend", name));
  for (const auto& [name, value] : environment.defaults)
    SPC_TRY(check_name(object, "default", name));
  return object.nothing_left();
}

Result<void> read_mount(JsonObject& object, MountEdit& mount) {
  SPC_TRY(object.take_path("source", mount.source));
  SPC_TRY(object.take("target", mount.target));
  // An empty target drops the mount, which only `create` may do.
  if (const std::string why = path_problem(mount.target); !mount.target.empty() && !why.empty()) {
    return object.problem("target", why);
  }
  if (mount.target == "/") return object.problem("target", "cannot be the root");
  SPC_TRY(object.take("readOnly", mount.read_only));
  SPC_TRY(object.take("noExec", mount.no_exec));
  SPC_TRY(object.take("optional", mount.optional));
  return object.take("size", mount.size);
}

Result<void> read_program(JsonObject& object, ProgramEdit& program) {
  SPC_TRY(object.take_path("path", program.path));
  if (program.path.empty()) return object.problem("path", "is missing");
  SPC_TRY(object.take("args", program.args));
  SPC_TRY(object.take("env", program.env));
  return object.take("timeout", program.timeout);
}

Result<void> read_device(JsonObject& object, DeviceEdit& device) {
  SPC_TRY(object.take_path("path", device.path));
  if (device.path.empty()) return object.problem("path", "is missing");
  SPC_TRY(object.take_path("source", device.source));
  return object.take("optional", device.optional);
}

Result<void> read_symlink(JsonObject& object, SymlinkEdit& link) {
  SPC_TRY(object.take_path("path", link.path));
  SPC_TRY(object.take("target", link.target));
  if (link.path.empty() || link.target.empty())
    return object.problem(link.path.empty() ? "path" : "target", "is missing");
  return {};
}

Result<void> read_file_edit(JsonObject& object, FileEdit& file) {
  SPC_TRY(object.take_path("path", file.path));
  if (file.path.empty()) return object.problem("path", "is missing");
  SPC_TRY(object.take("content", file.content));
  std::string mode;
  SPC_TRY(object.take("mode", mode));
  if (mode.empty()) return {};
  const bool is_octal = mode.size() <= 4 && mode.find_first_not_of("01234567") == std::string::npos;
  if (!is_octal || (mode.size() == 4 && mode[0] != '0'))
    return object.problem("mode", in_quotes(mode) + " is not between \"0000\" and \"0777\"");
  file.mode = static_cast<mode_t>(std::stoul(mode, nullptr, 8));
  return {};
}

Result<void> read_library(JsonObject& object, LibraryEdit& library) {
  SPC_TRY(object.take("soname", library.soname));
  if (library.soname.empty() || library.soname.find('/') != std::string::npos) {
    return object.problem("soname", in_quotes(library.soname) + " is not a library name");
  }
  SPC_TRY(object.take_path("path", library.path));
  if (library.path.empty()) return object.problem("path", "is missing");
  std::uint64_t machine = 0;
  SPC_TRY(object.take("machine", machine));
  if (machine > UINT16_MAX) return object.problem("machine", "is not an ELF e_machine");
  library.machine = static_cast<std::uint16_t>(machine);
  return object.take("before", library.before);
}

Result<void> read_library_directory(JsonObject& object, LibraryDirectoryEdit& directory) {
  SPC_TRY(object.take_path("path", directory.path));
  if (directory.path.empty()) return object.problem("path", "is missing");
  return object.take("before", directory.before);
}

Result<void> read_limit(JsonObject& object, LimitEdit& limit) {
  SPC_TRY(object.take("name", limit.name));
  if (std::find(kLimits.begin(), kLimits.end(), limit.name) == kLimits.end()) {
    return object.problem(
        "name", in_quotes(limit.name) +
                    " is not a limit (memlock, nofile, stack, core, nproc, as, data, fsize)");
  }
  const Json* soft = object.take_any("soft");
  if (soft == nullptr) return object.problem("soft", "is missing");
  if (!soft->is_text()) return object.take("soft", limit.soft);
  if (soft->as_text() != "unlimited")
    return object.problem("soft", "is neither a number nor \"unlimited\"");
  limit.soft = UINT64_MAX;
  return {};
}

/// Reads an array of objects into a list of edits.
template <typename Edit, typename Read>
Result<void> read_list(JsonObject& edits, const char* key, std::vector<Edit>& list,
                       const Read& read) {
  return edits.take_each(key, [&](JsonObject& element) -> Result<void> {
    Edit edit;
    SPC_TRY(read(element, edit));
    list.push_back(std::move(edit));
    return {};
  });
}

/// Returns the mount for a comparison of the members that stay when it is moved.
MountEdit without_target(MountEdit mount) {
  mount.target.clear();
  return mount;
}

}  // namespace

Json edits_object(const Edits& edits) {
  Json object = Json::object();
  if (edits.environment != Edits::Environment()) object["environment"] = json_of(edits.environment);
  const auto to_json = [](const auto& edit) { return json_of(edit); };
  put_each(object, "mounts", edits.mounts, to_json);
  put_each(object, "devices", edits.devices, to_json);
  put(object, "deniedDevices", edits.denied_devices);
  put_each(object, "symlinks", edits.symlinks, [](const auto& link) {
    return Json{{"path", link.path}, {"target", link.target}};
  });
  put_each(object, "files", edits.files, to_json);
  put(object, "directories", edits.directories);
  put_each(object, "libraries", edits.libraries, to_json);
  put_each(object, "libraryDirectories", edits.library_directories, to_json);
  put_each(object, "limits", edits.limits, to_json);
  put_each(object, "programs", edits.programs, to_json);
  put(object, "notes", edits.notes);
  put(object, "warnings", edits.warnings);
  put(object, "remembered", edits.remembered);
  put(object, "refusal", edits.refusal);
  return object;
}

Result<Edits> edits_of_object(const Json& value, const std::string& where) {
  auto object = SPC_TRY(JsonObject::of(value, where));
  Edits edits;
  SPC_TRY(read_environment(object, edits.environment));
  SPC_TRY(read_list(object, "mounts", edits.mounts, read_mount));
  SPC_TRY(read_list(object, "devices", edits.devices, read_device));
  SPC_TRY(object.take_paths("deniedDevices", edits.denied_devices));
  SPC_TRY(read_list(object, "symlinks", edits.symlinks, read_symlink));
  SPC_TRY(read_list(object, "files", edits.files, read_file_edit));
  SPC_TRY(object.take_paths("directories", edits.directories));
  SPC_TRY(read_list(object, "libraries", edits.libraries, read_library));
  SPC_TRY(
      read_list(object, "libraryDirectories", edits.library_directories, read_library_directory));
  SPC_TRY(read_list(object, "limits", edits.limits, read_limit));
  SPC_TRY(read_list(object, "programs", edits.programs, read_program));
  SPC_TRY(object.take("notes", edits.notes));
  SPC_TRY(object.take("warnings", edits.warnings));
  SPC_TRY(object.take("remembered", edits.remembered));
  SPC_TRY(object.take("refusal", edits.refusal));
  SPC_TRY(object.nothing_left());
  return edits;
}

Result<std::string> edits_to_json(const Edits& edits) {
  const Json object = edits_object(edits);
  std::string text = object.str(1);
  // Read the text back: bytes that are not UTF-8 have been replaced, and the edits would change.
  const auto read = Json::parse(text);
  if (read && *read == object) return text;
  return Error(ErrorKind::invalid, "write edits as JSON: a text in them is not UTF-8");
}

Result<Edits> edits_from_json(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return Edits();
  const Json document = SPC_TRY(JsonObject::parse(text));
  return edits_of_object(document, "");
}

Result<void> check_stage(const Edits& edits, std::string_view stage, const Edits& prepared) {
  const auto refuse = [](const std::string& why) { return Error(ErrorKind::invalid, why); };
  if (stage == "prepare") {
    for (std::size_t i = 0; i < edits.mounts.size(); ++i) {
      if (edits.mounts[i].target.empty())
        return refuse(formatted("mounts[{}].target: is missing", i));
    }
    return {};
  }
  if (stage == "create") {
    const bool same_mounts =
        std::equal(edits.mounts.begin(), edits.mounts.end(), prepared.mounts.begin(),
                   prepared.mounts.end(), [](const MountEdit& a, const MountEdit& b) {
                     return without_target(a) == without_target(b);
                   });
    if (!same_mounts) {
      return refuse("mounts: are not those of stage prepare")
          .hint("in create only a target may change or be empty");
    }
    if (edits.devices != prepared.devices) return refuse("devices: are not those of stage prepare");
    if (edits.programs != prepared.programs)
      return refuse("programs: are not those of stage prepare");
    const auto was_denied = [&](const std::string& node) {
      return std::find(prepared.denied_devices.begin(), prepared.denied_devices.end(), node) !=
             prepared.denied_devices.end();
    };
    if (std::all_of(edits.denied_devices.begin(), edits.denied_devices.end(), was_denied))
      return {};
    return refuse("deniedDevices: not all were denied in stage prepare");
  }
  Edits allowed;
  allowed.environment = edits.environment;
  allowed.limits = edits.limits;
  allowed.notes = edits.notes;
  allowed.warnings = edits.warnings;
  allowed.refusal = edits.refusal;
  if (edits == allowed) return {};
  return refuse(formatted(
      "in stage {} only environment, limits, notes, warnings and refusal are allowed", stage));
}

}  // namespace spc
