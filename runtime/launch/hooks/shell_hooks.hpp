#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "hook_engine/step_hooks.hpp"
#include "launch/spec/container_spec.hpp"
#include "request/options.hpp"
#include "task/root_setup.hpp"

namespace spc {

/// The start's data that the hooks receive.
struct ShellHookStart {
  const LaunchRequest& request;
  const std::map<std::string, std::string>& job;  ///< environment
  const SitePolicy& site;
  const ContainerSpec& spec;
};

/// Runs the hooks of a step in a child of the leader, after the builder's message `hooks`, whose
/// descriptors these are. The builder mounts for them. Returns the variables that they set.
Result<HookEdits> run_shell_hooks_in_step(const std::vector<ShellHook>& hooks,
                                          const ShellHookStart& start,
                                          std::vector<UniqueFd>& descriptors, RootSetup& setup,
                                          int builder, Log& log);

/// Runs the hooks without a step, in a child with the capabilities of the calling process, which
/// mounts itself. Creates `directory`.
Result<HookEdits> run_shell_hooks_alone(const std::vector<ShellHook>& hooks,
                                        const std::string& root, const std::string& directory,
                                        const ShellHookStart& start, Log& log);

}  // namespace spc
