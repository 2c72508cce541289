#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/inside/task_edits.hpp"
#include "launch/policy/site.hpp"

namespace spc {

/// What the leading task writes down for all tasks of its node, in a memory file, before anybody is let in. Behind it, when
/// that is known, follows how the entrypoint went.
struct TaskNotes {
  std::string step;  ///< whose: a container with a name may have been started by another step
  Site site;         ///< as that step has it, with what enroot's files add
  TaskEdits edits;   ///< of the hooks

  /// JOB.STEP of this environment.
  static std::string step_of(const std::map<std::string, std::string>& job_environment);

  static Result<UniqueFd> make_file();
  /// Once, before anything else is written there.
  Result<void> write(int file) const;
  static Result<TaskNotes> read(int file);
};

/// All that is behind the notes by now; for the entrypoint, which knows when it is complete.
Result<std::string> read_behind_notes(int file);

}  // namespace spc
