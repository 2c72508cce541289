#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "launch/spec/environment.hpp"

namespace spc {

/// The settings of an image that is just a file system, from the files that enroot and Apptainer
/// leave in it. Call it in the container, as the user, in every task. Adds to `settings`; nothing
/// in an image is an error. Skipped lines go to `log`, if any.
///
/// enroot:    NAME=VALUE lines of /etc/environment; the work directory from the `cd` in /etc/rc,
/// which itself is not run. Apptainer: assignments in /.singularity.d/env/*.sh, see
/// parse_shell_assignments(); scripts with more than those are for the image's shell to read. Its
/// /etc/environment is not read.
void read_image_files(const std::map<std::string, std::string>& job, ImageSettings& settings,
                      Log* log);

/// The directory of the cd command in enroot's /etc/rc; empty: none.
std::string workdir_in_rc(std::string_view text);

/// Plain assignments in a shell script, `[export] NAME=VALUE`, with quotes, backslashes, $NAME,
/// ${NAME} and ${NAME:-WORD}, where names are those assigned before, then those in `known`.
/// Conditions, loops, functions and lines that need a shell are skipped: `left_out` is the number
/// of the first one, or 0.
struct ShellAssignments {
  std::map<std::string, std::string> variables;
  unsigned left_out = 0;
};
ShellAssignments parse_shell_assignments(std::string_view script,
                                         const std::map<std::string, std::string>& known);

}  // namespace spc
