#include "launch/hooks/hook_edits.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/format.hpp"
#include "hooks/loader/loader.hpp"
#include "hooks/node/node.hpp"
#include "launch/site/enroot_compat.hpp"
#include "launch/sources/host_side.hpp"
#include "protocol/task.hpp"
#include "reference/location.hpp"
#include "task/root_setup.hpp"
#include "task/security.hpp"

namespace spc {

namespace {

struct Limit {
  std::string_view name;
  int resource;
};
constexpr std::array<Limit, 8> kLimits{{{"memlock", RLIMIT_MEMLOCK},
                                        {"nofile", RLIMIT_NOFILE},
                                        {"stack", RLIMIT_STACK},
                                        {"core", RLIMIT_CORE},
                                        {"nproc", RLIMIT_NPROC},
                                        {"as", RLIMIT_AS},
                                        {"data", RLIMIT_DATA},
                                        {"fsize", RLIMIT_FSIZE}}};

/// Sets a limit, at most to the hard limit.
void set_limit(const LimitEdit& edit) {
  for (const auto& [name, resource] : kLimits) {
    rlimit limit{};
    if (name != edit.name || ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0)
      continue;
    limit.rlim_cur =
        std::min<rlim_t>(edit.soft == UINT64_MAX ? RLIM_INFINITY : edit.soft, limit.rlim_max);
    ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
  }
}

/// Returns whether a hook may set the variable: it may not override variables that the user has set
/// or kept with --container-env.
bool is_free(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ||
         (found->second.origin != Origin::kept && found->second.origin != Origin::option);
}

void change(Environment& environment, const Edits::Environment& edits) {
  for (const std::string& name : edits.unset) {
    if (is_free(environment, name)) environment.erase(name);
  }
  for (const auto& [name, value] : edits.set) {
    if (is_free(environment, name)) environment[name] = {value, Origin::hook};
  }
  for (const auto& [name, value] : edits.prepend) {
    if (!is_free(environment, name)) continue;
    const std::string& old = environment[name].value;
    environment[name] = {old.empty() ? value : value + ":" + old, Origin::hook};
  }
  for (const auto& [name, value] : edits.defaults) {
    if (!environment.contains(name)) environment[name] = {value, Origin::hook};
  }
}

}  // namespace

HookContext hook_context(const LaunchRequest& request,
                         const std::map<std::string, std::string>& job_environment,
                         const SitePolicy& site) {
  HookContext context;
  context.job = job_environment;
  // A script submitted by a task of a step has that step's variables without being part of it.
  if (!request.batch_script.empty())
    std::erase_if(context.job,
                  [](const auto& variable) { return variable.first.starts_with("SLURM_STEP"); });
  for (const auto& [key, value] : site.records()) context.settings.emplace(key, value);
  context.uid = ::geteuid();
  context.gid = ::getegid();
  context.gpu = request.gpu;
  context.devices = request.devices;
  context.mpi = request.mpi;
  context.annotations = request.annotations;
  context.command = request.command;
  context.has_bind_mounts = std::ranges::any_of(
      request.mounts, [](const auto& m) { return m.kind == MountSpec::Kind::bind; });
  context.image_name = without_secrets(request.image);
  context.remap_root = request.remap_root.value_or(false);
  context.own_net = (request.namespaces & own_net) != 0;
  context.own_ipc = (request.namespaces & own_ipc) != 0;
  context.own_pid = (request.namespaces & own_pid) != 0;
  context.own_uts = (request.namespaces & own_uts) != 0;
  context.own_container = request.private_layer;
  context.writable = request.writable.value_or(true);
  context.mounts_home = !request.contain && request.mount_home.value_or(false);
  context.granted_devices = request.granted_devices;
  return context;
}

void add_image(HookContext& context, const ContainerSpec& spec) {
  for (const std::string& variable : spec.settings.environment) {
    const auto equals = variable.find('=');
    if (equals != std::string::npos && equals != 0)
      context.image[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  context.image_name = spec.image;
  if (spec.manifest) context.image_digest = spec.manifest->str();
  context.user = spec.user.name;
  context.home = spec.user.home;
  context.open_in_image = [](const char* path, int flags) {
    // The kernel allows few other flags with O_PATH.
    return open_inside(path, (flags & O_PATH) != 0 ? flags : flags | O_NONBLOCK);
  };
}

Result<StepHooks> find_hooks(HookContext context, Log& log) {
  std::string users;
  if (context.flag("enroot_compat", false) && context.flag("user_hooks", false)) {
    users = enroot_directory_of_user(SPC_TRY(enroot_settings(context.job)), context.job);
  }
  return StepHooks::find(std::move(context), log, users);
}

Result<void> apply_edits(const HookEdits& edits, StepHooks& hooks, ContainerSpec& spec, Log& log) {
  const auto apply_all = [&](const HookEdits& made) {
    for (const auto& [hook, of_hook, mounts, denied] : made.of_hooks) {
      change(spec.environment, of_hook.environment);
      for (const LimitEdit& limit : of_hook.limits) set_limit(limit);
      for (const std::string& warning : of_hook.warnings)
        log.write(LogLevel::warning, formatted("hook {}: {}", hook, printable(warning)));
      for (const std::string& note : of_hook.notes) {
        log.write(LogLevel::debug, formatted("hook {}: {}", hook, printable(note)));
        spec.hooks.emplace_back(hook, note);
      }
    }
  };
  // Also apply the results found once for all tasks: the user sees the output of one task only,
  // possibly not of the one that prepared.
  apply_all(edits);
  spec.hook_origins = hooks.origins();
  HookContext& context = hooks.context();
  add_image(context, spec);
  context.environment.clear();
  for (const auto& [name, variable] : spec.environment) context.environment[name] = variable.value;
  apply_all(SPC_TRY(hooks.task()));
  return {};
}

namespace {

std::uint32_t source_flags_of(const MountEdit& mount) {
  return (mount.read_only ? TaskMessage::source_read_only : 0U) |
         (mount.no_exec ? TaskMessage::source_no_exec : 0U);
}

int last_target(const RootSetup& root) { return static_cast<int>(root.mounts.size()) - 1; }

/// Returns the index of the mount target, or -1 for an optional source that cannot be opened.
Result<int> add_hook_mount(RootSetup& root, const HookContext& context, const MountEdit& mount) {
  if (mount.source.empty()) {
    add_tmpfs(root, mount.target, source_flags_of(mount), mount.size, {}, mount.target);
  } else if (auto added = add_source(root, context.host_root + mount.source, mount.target,
                                     source_flags_of(mount), mount.target);
             !added) {
    if (mount.optional) return -1;
    return std::move(added).error();
  }
  root.mounts.back().optional = mount.optional;
  return last_target(root);
}

Result<void> add_devices(RootSetup& root, const HookContext& context, const Edits& edits) {
  for (const DeviceEdit& device : edits.devices) {
    const std::string source = device.source.empty() ? device.path : device.source;
    const bool is_there = root.dev_targets == 0 || has_target(root, device.path);
    if (source == device.path && context.host_root.empty() && is_there)
      continue;  // /dev is the host's, or contains the node already
    auto added = add_source(root, context.host_root + source, device.path, 0, device.path);
    if (!added && !device.optional) return std::move(added).error();
    if (added) root.mounts.back().optional = device.optional;
  }
  return {};
}

/// Returns the index of the mount target, or -1 if there is no such node. The node is mounted over
/// itself with nodev: it keeps the type, number, owner and mode that drivers' libraries check
/// first, and open(2) fails with EACCES.
Result<int> deny_device(RootSetup& root, const HookContext& context, const std::string& node) {
  const std::string source = context.host_root + node;
  if (::access(source.c_str(), F_OK) != 0) return -1;
  if (root.dev_targets != 0 && !has_target(root, node)) return -1;
  SPC_TRY(add_source(root, source, node,
                     TaskMessage::source_read_only | TaskMessage::source_no_devices, node));
  return last_target(root);
}

void add_to(RootSetup& root, Edits edits) {
  for (SymlinkEdit& link : edits.symlinks)
    root.links.push_back({std::move(link.path), std::move(link.target)});
  for (FileEdit& file : edits.files)
    root.files.push_back({std::move(file.path), std::move(file.content), file.mode});
  std::ranges::move(edits.directories, std::back_inserter(root.directories));
}

Mount& target_at(RootSetup& root, int index) {
  return root.mounts[static_cast<std::size_t>(index)];
}

/// Drops, and moves, the mounts as `create` has decided.
void settle_mounts(const HookEdits& made, RootSetup& root) {
  for (const auto& [hook, edits, mounts, denied] : made.of_hooks) {
    for (const int index : denied) {
      Mount& node = target_at(root, index);
      node.wanted =
          std::ranges::find(edits.denied_devices, node.target) != edits.denied_devices.end();
    }
    for (std::size_t i = 0; i < mounts.size() && i < edits.mounts.size(); ++i) {
      if (mounts[i] < 0) continue;
      Mount& mount = target_at(root, mounts[i]);
      mount.wanted = !edits.mounts[i].target.empty();
      mount.target = mount.shown_as = edits.mounts[i].target;
    }
  }
}

Result<void> add_files(HookEdits& made, const HookContext& context, RootSetup& root) {
  std::vector<LibraryEdit> libraries;
  std::vector<LibraryDirectoryEdit> directories;
  for (const auto& [hook, edits, mounts, denied] : made.of_hooks) {
    std::ranges::copy(edits.libraries, std::back_inserter(libraries));
    std::ranges::copy(edits.library_directories, std::back_inserter(directories));
    add_to(root, edits);
  }
  Edits edits =
      SPC_TRY_DURING("update the loader's cache", loader_edits(context, libraries, directories));
  add_to(root, edits);
  if (edits != Edits()) made.of_hooks.push_back({"loader", std::move(edits)});
  return {};
}

}  // namespace

Result<HookEdits> prepare_edits(StepHooks& hooks, RootSetup& root) {
  auto prepared = SPC_TRY(hooks.prepare());
  const HookContext& context = hooks.context();
  for (auto& [hook, edits, mounts, denied] : prepared.of_hooks) {
    const std::string name = "hook " + hook;
    for (const MountEdit& mount : edits.mounts)
      mounts.push_back(SPC_TRY_DURING(name, add_hook_mount(root, context, mount)));
    SPC_TRY_DURING(name, add_devices(root, context, edits));
    for (const std::string& node : edits.denied_devices) {
      const int target = SPC_TRY_DURING(name, deny_device(root, context, node));
      if (target >= 0) denied.push_back(target);
    }
    added_for(root, name);
  }
  return prepared;
}

Result<void> create_edits(StepHooks& hooks, const ContainerSpec& spec, HookEdits& edits,
                          RootSetup& root) {
  add_image(hooks.context(), spec);
  SPC_TRY(hooks.create(edits));
  if (std::ranges::find(edits.of_hooks, shadow_hook.name, &HookEdits::OfHook::hook) ==
      edits.of_hooks.end()) {
    root.passwd_entry.clear();
    root.shadow_entry.clear();
    root.group_entries.clear();
    root.has_strange_groups = false;
  }
  settle_mounts(edits, root);
  return add_files(edits, hooks.context(), root);
}

void leave_out_edits(const HookEdits& edits, RootSetup& root) {
  for (const HookEdits::OfHook& of_hook : edits.of_hooks) {
    for (const int index : of_hook.mounts) {
      if (index >= 0) target_at(root, index).wanted = false;
    }
  }
}

}  // namespace spc
