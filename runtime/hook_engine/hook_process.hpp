#pragma once

#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// Runs a program of the site as the calling user until it exits, and returns its output of at most
/// 1 MiB. It has a session of its own, / as work directory, no capabilities and no_new_privs. Its
/// environment is built, not inherited: PATH, LANG, HOME, USER, LOGNAME, the job's SLURM_*, and its
/// own. The image's variables are data in the context. Its descriptors are 0 to 2, and its own file
/// at 3 if it is executed by `descriptor`, since its path is not reachable in a container. Writes
/// lines of its standard error to `log` with the hook's name, escaped, at most 200 of 1,000 bytes.
/// Its process group is killed when it has ended, at the time or output limit, or with the calling
/// process, which must be single-threaded. An error unless it exits with status 0: its file, its
/// exit status or signal, and its last lines.
Result<std::string> run_site_program(const std::string& hook, const ProgramEdit& program,
                                     std::string_view input, const HookContext& context, Log& log,
                                     int descriptor = -1);

/// Runs an OCI runtime hook in the same way, with the container state on standard input and a
/// bundle (a directory with config.json) that is removed afterwards. `status`: creating, created,
/// running or stopped. `root`: path of the container's root.
Result<void> run_oci_hook(const std::string& hook, const ProgramEdit& program,
                          std::string_view status, const std::string& root,
                          const HookContext& context, Log& log);

}  // namespace spc
