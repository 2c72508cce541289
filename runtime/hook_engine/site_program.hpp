#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hook_engine/hook_process.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// The environment of a hook process, built, not inherited: PATH, LANG, HOME, USER, LOGNAME and the
/// job's SLURM_*. The image's variables are data in the context; variables of loader and shell are
/// never passed.
std::vector<std::string> environment_of_hooks(const HookContext& context);

/// Runs it until it exits. Lines of its standard error go to `log` with the hook's name, escaped.
/// An error unless it exits with status 0: its file, how it ended, and its last lines. Returns its
/// output.
Result<std::string> run_site_program(const std::string& hook, const HookProcess& process, Log& log);

/// hook_timeout in config.toml.
std::chrono::seconds time_limit_of_hooks(const HookContext& context);

}  // namespace spc
