#include "launch/hooks/prepared_hooks.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "hooks/loader/loader.hpp"
#include "hooks/node/node.hpp"
#include "launch/host/own_dev.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

std::uint32_t source_flags_of(const MountEdit& mount) {
  return (mount.read_only ? TaskMessage::source_read_only : 0U) |
         (mount.no_exec ? TaskMessage::source_no_exec : 0U);
}

/// The index of the mount target, or -1 for an optional source that cannot be opened.
Result<int> add_hook_mount(HostSide& side, const HookContext& context, const MountEdit& mount) {
  if (mount.source.empty()) {
    add_tmpfs(side, mount.target, source_flags_of(mount), mount.size, {}, mount.target);
  } else if (auto added = add_source(side, context.host_root + mount.source, mount.target,
                                     source_flags_of(mount), mount.target);
             !added) {
    if (mount.optional) return -1;
    return std::move(added).error();
  }
  side.root.targets.back().optional = mount.optional;
  return static_cast<int>(side.root.targets.size()) - 1;
}

Result<void> add_devices(HostSide& side, const HookContext& context, const Edits& edits) {
  for (const DeviceEdit& device : edits.devices) {
    const std::string source = device.source.empty() ? device.path : device.source;
    const bool is_there = side.root.dev_targets == 0 || has_target(side, device.path);
    if (source == device.path && context.host_root.empty() && is_there)
      continue;  // /dev is the host's, or has it
    auto added = add_source(side, context.host_root + source, device.path, 0, device.path);
    if (!added && !device.optional) return std::move(added).error();
  }
  return {};
}

/// The index of the mount target, or -1 if there is no such node. It is covered by itself, without
/// devices: it keeps its type, number, owner and mode, as what drivers' libraries check first, and
/// open(2) fails with EACCES.
Result<int> deny_device(HostSide& side, const HookContext& context, const std::string& node) {
  const std::string source = context.host_root + node;
  if (::access(source.c_str(), F_OK) != 0) return -1;
  if (side.root.dev_targets != 0 && !has_target(side, node)) return -1;
  SPC_TRY(add_source(side, source, node,
                     TaskMessage::source_read_only | TaskMessage::source_no_devices, node));
  return static_cast<int>(side.root.targets.size()) - 1;
}

void add_to(RootSetup& root, Edits edits) {
  for (SymlinkEdit& link : edits.symlinks)
    root.links.push_back({std::move(link.path), std::move(link.target)});
  for (FileEdit& file : edits.files)
    root.files.push_back({std::move(file.path), std::move(file.content), file.mode});
  std::ranges::move(edits.directories, std::back_inserter(root.directories));
}

}  // namespace

Result<PreparedHooks> PreparedHooks::prepare(TaskHooks& hooks, HostSide& side) {
  PreparedHooks prepared;
  const HookContext& context = hooks.context_;
  hooks.prepares_ = true;
  prepared.outcomes_ = SPC_TRY(hooks.hooks_.prepare(context));
  for (const auto& [hook, edits] : prepared.outcomes_) {
    auto& indices = prepared.targets_.emplace_back();
    for (const MountEdit& mount : edits.mounts) {
      indices.push_back(SPC_TRY_DURING(name_in_errors(hook), add_hook_mount(side, context, mount)));
    }
    SPC_TRY_DURING(name_in_errors(hook), add_devices(side, context, edits));
    for (const std::string& node : edits.denied_devices) {
      const int target = SPC_TRY_DURING(name_in_errors(hook), deny_device(side, context, node));
      if (target >= 0) prepared.denied_.push_back({prepared.targets_.size() - 1, target});
    }
    side.added_for(name_in_errors(hook));
  }
  return prepared;
}

bool PreparedHooks::runs_shell_hooks(const TaskHooks& hooks) {
  return std::ranges::any_of(hooks.shell_hooks_, [](const ShellHook& hook) { return hook.runs; });
}

Result<void> PreparedHooks::create_on_host(TaskHooks& hooks, const ContainerSpec& spec) {
  hooks.tell_of_image(spec);
  return hooks.hooks_.create_on_host(hooks.context_, outcomes_);
}

Result<TaskEdits> PreparedHooks::create(TaskHooks& hooks, const ContainerSpec& spec,
                                        RootSetup& root) {
  hooks.tell_of_image(spec);
  SPC_TRY(hooks.hooks_.create(hooks.context_, outcomes_));
  const auto is_shadow = [](const StepHooks::Outcome& outcome) {
    return outcome.hook == shadow_hook.name;
  };
  if (std::ranges::none_of(outcomes_, is_shadow)) {
    root.passwd_entry.clear();
    root.shadow_entry.clear();
    root.group_entries.clear();
    root.has_strange_groups = false;
  }
  settle_mounts(root);
  SPC_TRY(add_files(hooks.context_, root));
  return for_tasks(hooks);
}

void PreparedHooks::settle_mounts(RootSetup& root) const {
  for (const auto& [outcome, index] : denied_) {
    const auto& still = outcomes_[outcome].edits.denied_devices;
    MountTarget& mount_target = root.targets[static_cast<std::size_t>(index)];
    mount_target.wanted = std::ranges::find(still, mount_target.target) != still.end();
  }
  for (std::size_t i = 0; i < outcomes_.size(); ++i) {
    const auto& mounts = outcomes_[i].edits.mounts;
    for (std::size_t mount = 0; mount < targets_[i].size() && mount < mounts.size(); ++mount) {
      if (targets_[i][mount] < 0) continue;
      MountTarget& mount_target = root.targets[static_cast<std::size_t>(targets_[i][mount])];
      mount_target.wanted = !mounts[mount].target.empty();
      mount_target.target = mount_target.shown_as = mounts[mount].target;
    }
  }
}

Result<void> PreparedHooks::add_files(const HookContext& context, RootSetup& root) {
  std::vector<LibraryEdit> libraries;
  std::vector<LibraryDirectoryEdit> directories;
  for (auto& [hook, edits] : outcomes_) {
    std::ranges::move(edits.libraries, std::back_inserter(libraries));
    std::ranges::move(edits.library_directories, std::back_inserter(directories));
    add_to(root, edits);
  }
  Edits edits =
      SPC_TRY_DURING("update the loader's cache", loader_edits(context, libraries, directories));
  add_to(root, edits);
  if (edits != Edits()) outcomes_.push_back({"loader", std::move(edits)});
  return {};
}

void PreparedHooks::leave_out(RootSetup& root) const {
  for (const auto& indices : targets_) {
    for (const int index : indices) {
      if (index >= 0) root.targets[static_cast<std::size_t>(index)].wanted = false;
    }
  }
}

TaskEdits PreparedHooks::for_tasks(const TaskHooks& hooks) const {
  TaskEdits task;
  task.off = hooks.hooks_.built_in_off();
  for (const auto& [hook, edits] : outcomes_) {
    Edits kept;
    kept.environment = edits.environment;
    kept.limits = edits.limits;
    kept.notes = edits.notes;
    kept.warnings = edits.warnings;
    if (kept != Edits()) task.of_hooks.emplace_back(hook, std::move(kept));
  }
  task.of_hooks.insert(task.of_hooks.end(), of_shell_hooks_.of_hooks.begin(),
                       of_shell_hooks_.of_hooks.end());
  task.took = hooks.hooks_.durations();
  return task;
}

}  // namespace spc
