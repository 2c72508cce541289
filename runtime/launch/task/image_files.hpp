#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "launch/spec/environment.hpp"

namespace spc {

// --- image files ---

/// Reads the settings of an image that is only a file system from the files that enroot and
/// Apptainer store in it. Call it in the container, as the user, in every task. Adds to `settings`.
/// Invalid files in an image are not errors. Skipped lines go to `log`, if any.
///
/// enroot:    NAME=VALUE lines of /etc/environment; the work directory from the `cd` in /etc/rc,
/// which itself is not executed.
/// Apptainer: assignments in /.singularity.d/env/*.sh, see parse_shell_assignments(). Scripts with
/// other commands are left to the image's shell. Its /etc/environment is not read.
void read_image_files(const std::map<std::string, std::string>& job, ImageSettings& settings,
                      Log* log);

/// Returns the directory of the cd command in enroot's /etc/rc; empty if there is none.
std::string workdir_in_rc(std::string_view text);

/// The plain assignments in a shell script: `[export] NAME=VALUE` with quotes, backslashes, $NAME,
/// ${NAME} and ${NAME:-WORD}. References resolve to earlier assignments, then to `known`.
/// Conditions, loops, functions and lines that need a shell are skipped: `left_out` is the number
/// of the first such line, or 0.
struct ShellAssignments {
  std::map<std::string, std::string> variables;
  unsigned left_out = 0;
};
ShellAssignments parse_shell_assignments(std::string_view script,
                                         const std::map<std::string, std::string>& known);

// --- missing program ---

/// Returns why a program cannot be executed in a container: it, its interpreter or its loader is
/// missing, or the file is none that this machine executes. The text is a line for the user, empty
/// if no reason is known. In the container. `path` is the command's PATH.
/// `has_submit_directory`: the work directory is that of the submission.
std::string why_missing(const std::string& program, std::string_view path, std::string_view image,
                        bool has_submit_directory = false);

/// Returns the programs that the tasks of these ranks, all of one node, report if they are missing:
/// rank 0 the step's, and with srun --multi-prog the first rank of each line of the file that
/// line's. `command`: as Slurm gives it to SPANK.
std::vector<std::string> programs_told_by(const std::vector<std::uint32_t>& ranks,
                                          const std::vector<std::string>& command);

}  // namespace spc
