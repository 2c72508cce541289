#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/inside/task_edits.hpp"
#include "launch/inside/task_security.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/environment_wishes.hpp"
#include "launch/spec/container_spec.hpp"

namespace spc {

/// What the leader writes for all tasks of its node, into a memory file, before any task enters.
/// The outcome of the entrypoint follows it, once it is known.
struct TaskNotes {
  std::string step;   ///< whose: a named container may have been started by another step
  std::string image;  ///< ContainerSpec::image
  ContainerSpec::From from{};
  bool writable = true;
  SitePolicy site;  ///< of that step, including enroot's files
  TaskEdits edits;  ///< of the hooks
  TaskSecurity security;
  EnvironmentWishes wishes;  ///< of the step, its --container-env-file included

  /// JOB.STEP from this environment.
  static std::string step_of(const std::map<std::string, std::string>& job_environment);

  /// Once, before anything else is written there.
  Result<void> write(int file) const;
  static Result<TaskNotes> read(int file);
};

/// Everything after the notes so far; for the entrypoint, which knows when it is complete.
Result<std::string> read_behind_notes(int file);

}  // namespace spc
