#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/hooks/hook_runner.hpp"
#include "launch/hooks/step_edits.hpp"
#include "launch/policy/site.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/container_spec.hpp"

namespace spc {

/// Where enroot's hooks find the container that is being made.
struct ShellHookPlace {
  std::string root;       ///< ENROOT_ROOTFS
  std::string directory;  ///< the user's, for their files: ENROOT_RUNTIME_PATH
  std::string workdir;    ///< they begin there
};

/// What they may know of the start.
struct ShellHookStart {
  const LaunchRequest& request;
  const std::map<std::string, std::string>& job;  ///< environment
  const Site& site;
  const ContainerSpec& spec;
};

/// Runs the hooks in their order, then mounts what they have written to ENROOT_MOUNTS. Gives back what they have written to
/// ENROOT_ENVIRON. The calling process must see the host and the container's root; `prepare` completes the runner.
Result<TaskEdits> run_shell_hooks(const std::vector<ShellHook>& hooks, const ShellHookPlace& place, const ShellHookStart& start,
                                  Log& log, const std::function<Result<void>(HookRunner&)>& prepare);

/// The lead's part in a step, when the builder has said `hooks`, with these descriptors: does it in a child, and `furnished`.
Result<TaskEdits> run_shell_hooks_in_step(const std::vector<ShellHook>& hooks, const ShellHookStart& start,
                                          std::vector<UniqueFd>& descriptors, Furniture& furniture, int builder, Log& log);

/// Without a step: in a child with the capabilities of the calling process, which mounts by itself. `directory` is made.
Result<TaskEdits> run_shell_hooks_alone(const std::vector<ShellHook>& hooks, const std::string& root,
                                        const std::string& directory, const ShellHookStart& start, Log& log);

}  // namespace spc
