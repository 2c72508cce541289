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

/// The environment of a hook's process, built and not inherited: PATH, LANG, HOME, USER, LOGNAME and the job's SLURM_*. The
/// image's variables are data in the context; what is for the loader or a shell comes from nobody.
std::vector<std::string> environment_of_hooks(const HookContext& context);

/// Runs it to its end. Lines of its standard error go to `log` under the hook's name, escaped. An error unless it ends with
/// status 0: its file, how it ended, and the last lines it said. Gives back what it printed.
Result<std::string> run_site_program(const std::string& hook, const HookProcess& process, Log& log);

/// hook_timeout of config.toml.
std::chrono::seconds time_limit_of_hooks(const HookContext& context);

}  // namespace spc
