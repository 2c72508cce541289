#include "launch/hooks/step_edits.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "hooks/loader/loader.hpp"
#include "hooks/node/node.hpp"
#include "launch/site/enroot_compat.hpp"
#include "protocol/task.hpp"
#include "task/furnish.hpp"

namespace spc {
namespace {

constexpr char kDeniedNode[] = SPC_RUN_DIR "/denied";  ///< a file that nobody can open

std::string origin_of(const std::string& hook) { return "hook " + hook; }

std::uint32_t source_flags_of(const MountEdit& mount) {
  return (mount.read_only ? TaskMessage::source_read_only : 0U) | (mount.no_exec ? TaskMessage::source_no_exec : 0U) |
         (mount.recursive ? 0U : TaskMessage::source_not_recursive);
}

/// The index of the placement, or -1 for an optional source that cannot be opened.
Result<int> add_hook_mount(HostSide& side, const HookContext& context, const MountEdit& mount) {
  if (mount.source.empty()) {
    add_tmpfs(side, mount.target, source_flags_of(mount), mount.size, {}, mount.target);
  } else if (auto added = add_source(side, context.host_root + mount.source, mount.target, source_flags_of(mount), mount.target);
             !added) {
    if (mount.optional) return -1;
    return std::move(added).error();
  }
  return static_cast<int>(side.furniture.placements.size()) - 1;
}

Result<void> add_devices(HostSide& side, const HookContext& context, const Edits& edits) {
  for (const DeviceEdit& device : edits.devices) {
    const std::string source = device.source.empty() ? device.path : device.source;
    if (source == device.path && context.host_root.empty()) continue;  // /dev is the host's
    auto added = add_source(side, context.host_root + source, device.path, 0, device.path);
    if (!added && !device.optional) return std::move(added).error();
  }
  return {};
}

/// The index of the placement, or -1 if there is no such node, or nothing to cover it with: slurmd's start makes that file, and
/// where there is no Slurm nobody has allocated anything.
Result<int> deny_device(HostSide& side, const HookContext& context, const std::string& node) {
  if (::access((context.host_root + node).c_str(), F_OK) != 0 || ::access(kDeniedNode, F_OK) != 0) return -1;
  SPC_TRY(add_source(side, kDeniedNode, node, TaskMessage::source_read_only, node));
  return static_cast<int>(side.furniture.placements.size()) - 1;
}

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

/// As far as the hard limit lets.
void set_limit(const LimitEdit& edit) {
  for (const auto& [name, resource] : kLimits) {
    rlimit limit{};
    if (name != edit.name || ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) continue;
    limit.rlim_cur = std::min<rlim_t>(edit.soft == UINT64_MAX ? RLIM_INFINITY : edit.soft, limit.rlim_max);
    ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
  }
}

/// What the user has given, or kept, with --container-env is his; of the rest the hook's word counts.
bool is_free(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() || (found->second.origin != Origin::kept && found->second.origin != Origin::option);
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

HookContext::Variables values_of(const Environment& environment) {
  HookContext::Variables values;
  for (const auto& [name, variable] : environment) values[name] = variable.value;
  return values;
}

/// What image and task have to do with each other.
void add_image(HookContext& context, const ContainerSpec& spec) {
  for (const std::string& variable : spec.settings.environment) {
    const auto equals = variable.find('=');
    if (equals != std::string::npos && equals != 0) context.image[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  context.image_name = spec.image;
  if (spec.manifest) context.image_digest = spec.manifest->str();
  context.user = spec.user.name;
  context.home = spec.user.home;
  context.open_in_image = [](const char* path, int flags) {
    return open_inside(path, (flags & O_PATH) != 0 ? flags : flags | O_NONBLOCK);  // the kernel takes no more beside O_PATH
  };
}

void add_to(Furniture& furniture, Edits edits) {
  for (SymlinkEdit& link : edits.symlinks) furniture.links.push_back({std::move(link.path), std::move(link.target)});
  for (FileEdit& file : edits.files) furniture.files.push_back({std::move(file.path), std::move(file.content), file.mode});
  std::ranges::move(edits.directories, std::back_inserter(furniture.directories));
}

}  // namespace

HookContext HookedStart::context_of(const LaunchRequest& request, const std::map<std::string, std::string>& job_environment,
                                    const Site& site) {
  HookContext context;
  context.job = job_environment;
  // A script that was submitted by a task of a step has that step's variables, and is none of it.
  if (!request.batch_script.empty())
    std::erase_if(context.job, [](const auto& variable) { return variable.first.starts_with("SLURM_STEP"); });
  for (const auto& [key, value] : site.records()) context.settings.emplace(key, value);
  context.uid = ::geteuid();
  context.gid = ::getegid();
  context.gpu = request.gpu;
  context.devices = request.devices;
  context.mpi = request.mpi;
  context.command = request.command;
  context.has_bind_mounts = std::ranges::any_of(request.mounts, [](const auto& m) { return m.kind == MountSpec::Kind::bind; });
  context.image_name = request.image;
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

Result<void> HookedStart::find(HookContext context, Log& log) {
  context_ = std::move(context);
  std::string users;
  if (context_.flag("enroot_compat", false) && context_.flag("user_hooks", false)) {
    users = enroot_directory_of_user(SPC_TRY(enroot_settings(context_.job)), context_.job);
  }
  shell_hooks_ = SPC_TRY(find_shell_hooks(context_, users));
  StepHooks::Replaced replaced;
  for (const ShellHook& hook : shell_hooks_) replaced[hook.name] = hook.path;
  hooks_ = SPC_TRY(StepHooks::find(context_, log, replaced));
  return {};
}

Result<void> HookedStart::prepare(HookContext context, HostSide& side, Log& log) {
  if (hooks_) {
    context_ = std::move(context);
  } else {
    SPC_TRY(find(std::move(context), log));
  }
  prepared_ = true;
  outcomes_ = SPC_TRY(hooks_->prepare(context_));
  for (const auto& [hook, edits] : outcomes_) {
    auto& indices = placements_.emplace_back();
    for (const MountEdit& mount : edits.mounts) {
      indices.push_back(SPC_TRY_DURING(origin_of(hook), add_hook_mount(side, context_, mount)));
    }
    SPC_TRY_DURING(origin_of(hook), add_devices(side, context_, edits));
    for (const std::string& node : edits.denied_devices) {
      const int placement = SPC_TRY_DURING(origin_of(hook), deny_device(side, context_, node));
      if (placement >= 0) denied_.push_back({placements_.size() - 1, placement});
    }
    side.added_for(origin_of(hook));
  }
  return {};
}

Result<void> HookedStart::before_entering(HookContext context, const TaskEdits& edits, const ContainerSpec& spec, Log& log) {
  if (!hooks_) {
    context_ = std::move(context);
    StepHooks::Replaced replaced;
    for (const std::string& name : edits.off) replaced[name] = "";
    hooks_ = SPC_TRY(StepHooks::find(context_, log, replaced));
  }
  add_image(context_, spec);
  if (prepared_) SPC_TRY(hooks_->create_on_host(context_, outcomes_));
  return hooks_->task_on_host(context_);
}

Result<void> HookedStart::create(const ContainerSpec& spec, Furniture& furniture) {
  if (!prepared_) return {};
  add_image(context_, spec);
  SPC_TRY(hooks_->create(context_, outcomes_));
  const auto is_shadow = [](const StepHooks::Outcome& outcome) { return outcome.hook == shadow_hook.name; };
  if (std::ranges::none_of(outcomes_, is_shadow)) {
    furniture.passwd_entry.clear();
    furniture.group_entries.clear();
  }
  for (const auto& [outcome, index] : denied_) {
    const auto& still = outcomes_[outcome].edits.denied_devices;
    Placement& placement = furniture.placements[static_cast<std::size_t>(index)];
    placement.wanted = std::ranges::find(still, placement.target) != still.end();
  }
  std::vector<LibraryEdit> libraries;
  std::vector<LibraryDirectoryEdit> directories;
  for (std::size_t i = 0; i < outcomes_.size(); ++i) {
    Edits& edits = outcomes_[i].edits;
    for (std::size_t mount = 0; mount < placements_[i].size() && mount < edits.mounts.size(); ++mount) {
      if (placements_[i][mount] < 0) continue;
      Placement& placement = furniture.placements[static_cast<std::size_t>(placements_[i][mount])];
      placement.wanted = !edits.mounts[mount].target.empty();
      placement.target = placement.shown_as = edits.mounts[mount].target;
    }
    std::ranges::move(edits.libraries, std::back_inserter(libraries));
    std::ranges::move(edits.library_directories, std::back_inserter(directories));
    add_to(furniture, edits);
  }
  Edits edits = SPC_TRY_DURING("update the loader's cache", loader_edits(context_, libraries, directories));
  add_to(furniture, edits);
  if (edits != Edits()) {
    outcomes_.push_back({"loader", std::move(edits)});
    placements_.emplace_back();
  }
  return {};
}

void HookedStart::leave_out(Furniture& furniture) const {
  for (const auto& indices : placements_) {
    for (const int index : indices) {
      if (index >= 0) furniture.placements[static_cast<std::size_t>(index)].wanted = false;
    }
  }
}

bool HookedStart::runs_shell_hooks() const {
  return prepared_ && std::any_of(shell_hooks_.begin(), shell_hooks_.end(), [](const ShellHook& hook) { return hook.runs; });
}

TaskEdits HookedStart::for_tasks() const {
  TaskEdits task;
  for (const ShellHook& hook : shell_hooks_) task.off.push_back(hook.name);
  for (const auto& [hook, edits] : outcomes_) {
    Edits kept;
    kept.environment = edits.environment;
    kept.limits = edits.limits;
    kept.notes = edits.notes;
    kept.warnings = edits.warnings;
    if (kept != Edits()) task.of_hooks.emplace_back(hook, std::move(kept));
  }
  task.of_hooks.insert(task.of_hooks.end(), of_shell_hooks_.of_hooks.begin(), of_shell_hooks_.of_hooks.end());
  if (hooks_) task.took = hooks_->durations();
  return task;
}

Result<void> HookedStart::start() { return hooks_ && prepared_ ? hooks_->start(context_) : Result<void>(); }

std::string HookedStart::timing(const TaskEdits& edits) const {
  auto took = edits.took;
  for (const auto& [hook, microseconds] : hooks_->durations()) {
    // What this process has counted is in what it wrote down, if it was the one that prepared.
    took[hook] = prepared_ ? std::max(took[hook], microseconds) : took[hook] + microseconds;
  }
  std::uint64_t sum = 0;
  std::pair<std::string, std::uint64_t> slowest;
  for (const auto& [hook, microseconds] : took) {
    sum += microseconds;
    if (microseconds >= slowest.second) slowest = {hook, microseconds};
  }
  if (slowest.first.empty()) return "";
  return "hooks took " + std::to_string(sum) + " us, longest " + slowest.first + " with " + std::to_string(slowest.second) +
         " us";
}

Result<void> HookedStart::apply_to_task(const TaskEdits& edits, ContainerSpec& spec, Log& log) {
  const auto apply = [&](const std::string& hook, const Edits& of_hook) {
    change(spec.environment, of_hook.environment);
    for (const LimitEdit& limit : of_hook.limits) set_limit(limit);
    for (const std::string& warning : of_hook.warnings) {
      log.write(LogLevel::warning, origin_of(hook) + ": " + printable(warning));
    }
    for (const std::string& note : of_hook.notes) {
      log.write(LogLevel::debug, origin_of(hook) + ": " + printable(note));
      spec.hooks.emplace_back(hook, note);
    }
  };
  // Also what was found once for all: the user hears of one task only, and that need not be the one that prepared.
  for (const auto& [hook, of_hook] : edits.of_hooks) apply(hook, of_hook);

  if (!hooks_) return Error(ErrorKind::internal, "hooks were not discovered before the container was entered");
  spec.hook_origins = hooks_->origins();
  add_image(context_, spec);
  context_.environment = values_of(spec.environment);
  for (const auto& [hook, of_hook] : SPC_TRY(hooks_->task(context_))) apply(hook, of_hook);
  return {};
}

}  // namespace spc
