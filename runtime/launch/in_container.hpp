#pragma once

#include "launch/agent_line.hpp"
#include "launch/hooks/task_hooks.hpp"
#include "launch/inside/entrypoint.hpp"
#include "launch/inside/task_notes.hpp"
#include "launch/launch.hpp"
#include "launch/spec/container_spec.hpp"
#include "launch/task_context.hpp"

namespace spc {

/// A task that is in its container, without privilege, with what it needs to decide the rest.
struct InContainer {
  Asked asked;  ///< with what the container has in place of what the site decides
  SitePolicy site;
  ContainerSpec spec;
  TaskHooks hooks;
  TaskEdits edits;  ///< of hooks, for all tasks of this container
  TaskSecurity security;
  UserIdentity as_on_host;
};

/// On the host, without privilege: writes the site's settings, what its hooks say for this task,
/// and the variables that the user asks for into `answer`.
Result<void> answer_for_host(const Arrival& arrival, const TaskCall& call, int answer);

/// In the container: reads what the user has asked for, and what the leader has written.
Result<InContainer> read_inside(const Arrival& arrival, const TaskCall& call);

struct Decision {
  const LaunchRequest& request;
  const SitePolicy& site;
  TaskHooks& hooks;
  const TaskEdits& edits;
};
/// What is executed: environment, work directory, what hooks say for this task. In the container.
Result<void> decide_all(ContainerSpec& spec, const Decision& by, const TaskContext& task);

}  // namespace spc
