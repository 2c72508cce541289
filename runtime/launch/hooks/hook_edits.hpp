#pragma once

#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "hook_engine/step_hooks.hpp"
#include "launch/sources/host_side.hpp"
#include "launch/spec/container_spec.hpp"
#include "request/options.hpp"

namespace spc {

/// Returns the hooks' context before the image is known.
HookContext hook_context(const LaunchRequest& request,
                         const std::map<std::string, std::string>& job_environment,
                         const SitePolicy& site);
/// Adds what is known of the image and the user.
void add_image(HookContext& context, const ContainerSpec& spec);

/// Finds the hooks, also enroot's, for a task that may prepare a container.
Result<StepHooks> find_hooks(HookContext context, Log& log);

// The hooks' part in the start of one container: their edits become mounts, files and variables.

/// Runs `prepare` on the host, as the user, opens the requested mount sources and adds them to
/// `root`.
Result<HookEdits> prepare_edits(StepHooks& hooks, RootSetup& root);
/// Runs `create` inside, before anything is mounted, and adds the results to `root`. Its mount
/// targets are those of the `root` above, possibly followed by new ones. `edits` are then complete
/// but for those of enroot's hooks.
Result<void> create_edits(StepHooks& hooks, const ContainerSpec& spec, HookEdits& edits,
                          RootSetup& root);
/// Replaces create_edits() if no files can be created inside: drops the hooks' mounts.
void leave_out_edits(const HookEdits& edits, RootSetup& root);
/// Applies, inside, when the environment is decided, the hooks' edits for all tasks and for this
/// task.
Result<void> apply_edits(const HookEdits& edits, StepHooks& hooks, ContainerSpec& spec, Log& log);

}  // namespace spc
