#include "launch/hooks/task_hooks.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "image/reference/file_url.hpp"
#include "launch/site/enroot_compat.hpp"
#include "protocol/task.hpp"
#include "task/root/root_setup.hpp"

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

/// As far as the hard limit lets.
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

/// What the user has given, or kept, with --container-env is his; of the rest the hook's word
/// counts.
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

HookContext::Variables values_of(const Environment& environment) {
  HookContext::Variables values;
  for (const auto& [name, variable] : environment) values[name] = variable.value;
  return values;
}

}  // namespace

std::string name_in_errors(const std::string& hook) { return "hook " + hook; }

HookContext hook_context(const LaunchRequest& request,
                         const std::map<std::string, std::string>& job_environment,
                         const SitePolicy& site) {
  HookContext context;
  context.job = job_environment;
  // A script that was submitted by a task of a step has that step's variables, and is none of it.
  if (!request.batch_script.empty())
    std::erase_if(context.job,
                  [](const auto& variable) { return variable.first.starts_with("SLURM_STEP"); });
  for (const auto& [key, value] : site.records()) context.settings.emplace(key, value);
  context.uid = ::geteuid();
  context.gid = ::getegid();
  context.gpu = request.gpu;
  context.devices = request.devices;
  context.mpi = request.mpi;
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

Result<TaskHooks> TaskHooks::find(HookContext context, Log& log) {
  std::string users;
  if (context.flag("enroot_compat", false) && context.flag("user_hooks", false)) {
    users = enroot_directory_of_user(SPC_TRY(enroot_settings(context.job)), context.job);
  }
  auto shell_hooks = SPC_TRY(find_shell_hooks(context, users));
  StepHooks::Replaced replaced;
  for (const ShellHook& hook : shell_hooks) replaced[hook.name] = hook.path;
  auto hooks = SPC_TRY(StepHooks::find(context, log, replaced));
  TaskHooks found(std::move(context), std::move(hooks));
  found.shell_hooks_ = std::move(shell_hooks);
  return found;
}

Result<TaskHooks> TaskHooks::find_for_task(HookContext context, const TaskEdits& edits, Log& log) {
  StepHooks::Replaced replaced;
  for (const std::string& name : edits.off) replaced[name] = "";
  auto hooks = SPC_TRY(StepHooks::find(context, log, replaced));
  return TaskHooks(std::move(context), std::move(hooks));
}

TaskHooks TaskHooks::inside(HookContext context, const TaskEdits& edits, const TaskEdits& said,
                            Log& log) {
  std::vector<StepHooks::Outcome> outcomes;
  for (const auto& [hook, of_hook] : said.of_hooks) outcomes.push_back({hook, of_hook});
  auto hooks = StepHooks::inside(context, log, edits.off, outcomes);
  return TaskHooks(std::move(context), std::move(hooks));
}

Result<TaskEdits> TaskHooks::said_on_host(const ContainerSpec& spec) {
  tell_of_image(spec);
  TaskEdits said;
  for (auto& [hook, edits] : SPC_TRY(hooks_.said_on_host(context_)))
    said.of_hooks.emplace_back(hook, std::move(edits));
  return said;
}

Result<void> TaskHooks::before_entering(const ContainerSpec& spec) {
  tell_of_image(spec);
  return hooks_.task_on_host(context_);
}

void TaskHooks::tell_of_image(const ContainerSpec& spec) {
  for (const std::string& variable : spec.settings.environment) {
    const auto equals = variable.find('=');
    if (equals != std::string::npos && equals != 0)
      context_.image[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  context_.image_name = spec.image;
  if (spec.manifest) context_.image_digest = spec.manifest->str();
  context_.user = spec.user.name;
  context_.home = spec.user.home;
  context_.open_in_image = [](const char* path, int flags) {
    return open_inside(path, (flags & O_PATH) != 0
                                 ? flags
                                 : flags | O_NONBLOCK);  // the kernel takes no more beside O_PATH
  };
}

std::string TaskHooks::timing(const TaskEdits& edits) const {
  auto took = edits.took;
  for (const auto& [hook, microseconds] : hooks_.durations()) {
    // What this process has counted is in what it wrote down, if it was the one that prepared.
    took[hook] = prepares_ ? std::max(took[hook], microseconds) : took[hook] + microseconds;
  }
  std::uint64_t sum = 0;
  std::pair<std::string, std::uint64_t> slowest;
  for (const auto& [hook, microseconds] : took) {
    sum += microseconds;
    if (microseconds >= slowest.second) slowest = {hook, microseconds};
  }
  if (slowest.first.empty()) return "";
  return "hooks took " + std::to_string(sum) + " us, longest " + slowest.first + " with " +
         std::to_string(slowest.second) + " us";
}

Result<void> TaskHooks::apply(const TaskEdits& edits, ContainerSpec& spec, Log& log) {
  const auto apply_one = [&](const std::string& hook, const Edits& of_hook) {
    change(spec.environment, of_hook.environment);
    for (const LimitEdit& limit : of_hook.limits) set_limit(limit);
    for (const std::string& warning : of_hook.warnings) {
      log.write(LogLevel::warning, name_in_errors(hook) + ": " + printable(warning));
    }
    for (const std::string& note : of_hook.notes) {
      log.write(LogLevel::debug, name_in_errors(hook) + ": " + printable(note));
      spec.hooks.emplace_back(hook, note);
    }
  };
  // Also what was found once for all: the user hears of one task only, and that need not be the one
  // that prepared.
  for (const auto& [hook, of_hook] : edits.of_hooks) apply_one(hook, of_hook);

  spec.hook_origins = hooks_.origins();
  tell_of_image(spec);
  context_.environment = values_of(spec.environment);
  for (const auto& [hook, of_hook] : SPC_TRY(hooks_.task(context_))) apply_one(hook, of_hook);
  return {};
}

}  // namespace spc
