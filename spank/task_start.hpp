#pragma once

#include <string>

#include "state.hpp"

namespace spank_container {

/// The plugin's part of a task's way into its container (runtime/task/entering/arrival.hpp). The
/// task has the privilege that entering takes, so this file looks at nothing that the user has
/// written: it passes pointers on. tests/architecture counts it.

/// spc_environment::read.
using ReadTexts = int (*)(const spc_options** options, const char* const** variables, void* spank);

struct TaskStarted {
  int code = SPC_E_INTERNAL;  ///< of spc_task_enter; the same without an agent: State::step_error
  int prolog_status = 0;      ///< exit status of the site's TaskProlog, if it ran on the host
  std::string prolog_said;    ///< its output, unread
};

/// As the user: takes the task into the container. The process has no capability afterwards.
const TaskStarted& start_task(spank_t spank, ReadTexts read);

}  // namespace spank_container
