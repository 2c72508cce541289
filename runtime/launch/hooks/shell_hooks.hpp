#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook_engine/shell_hook.hpp"
#include "launch/hooks/hook_runner.hpp"
#include "launch/inside/task_edits.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/container_spec.hpp"
#include "task/root/root_setup.hpp"

namespace spc {

/// Where enroot's hooks find the container being set up.
struct ShellHookPlace {
  std::string root;       ///< ENROOT_ROOTFS
  std::string directory;  ///< owned by the user, for their files: ENROOT_RUNTIME_PATH
  std::string workdir;    ///< their work directory
};

/// What they are told about the start.
struct ShellHookStart {
  const LaunchRequest& request;
  const std::map<std::string, std::string>& job;  ///< environment
  const SitePolicy& site;
  const ContainerSpec& spec;
};

/// Runs the hooks in order, then mounts what they wrote to ENROOT_MOUNTS. Returns what they wrote
/// to ENROOT_ENVIRON. The calling process must see the host and the container's root; `prepare`
/// completes the runner.
Result<TaskEdits> run_shell_hooks(const std::vector<ShellHook>& hooks, const ShellHookPlace& place,
                                  const ShellHookStart& start, Log& log,
                                  const std::function<Result<void>(HookRunner&)>& prepare);

/// The leader's part in a step, after the builder's message `hooks`, with these descriptors: runs
/// them in a child.
Result<TaskEdits> run_shell_hooks_in_step(const std::vector<ShellHook>& hooks,
                                          const ShellHookStart& start,
                                          std::vector<UniqueFd>& descriptors, RootSetup& setup,
                                          int builder, Log& log);

/// Without a step: in a child with the capabilities of the calling process, which mounts itself.
/// `directory` is created.
Result<TaskEdits> run_shell_hooks_alone(const std::vector<ShellHook>& hooks,
                                        const std::string& root, const std::string& directory,
                                        const ShellHookStart& start, Log& log);

}  // namespace spc
