#pragma once

#include <optional>

#include "launch/agent_line.hpp"
#include "launch/hooks/task_hooks.hpp"
#include "launch/host/named_container.hpp"
#include "launch/inside/entrypoint.hpp"
#include "launch/inside/task_notes.hpp"
#include "launch/spec/container_spec.hpp"
#include "task/namespaces.hpp"

namespace spc {

/// A task that is in its container, as leader or follower, with what it needs to decide the rest.
struct InContainer {
  LaunchRequest request;  ///< the leader's is completed by the site
  SitePolicy site;
  ContainerSpec spec;
  TaskHooks hooks;
  TaskEdits edits;  ///< of hooks, for all tasks of this container
  Entrypoint entrypoint;
  UniqueFd notes;  ///< as the agent passes them on: the entrypoint's outcome comes at their end
  TaskMessage ready;
  NamedStart named;
  std::optional<UserIdentity> recorded_as;  ///< as the host knows the user, if this task is to record the start
};

/// What the agent passes to each task with `ready`.
struct ReadyContainer {
  TaskMessage message;
  std::vector<UniqueFd> passed;
  UniqueFd notes;  ///< empty: the container has none

  static Result<ReadyContainer> of(AgentMessage ready);
  [[nodiscard]] int record() const { return passed[1].get(); }
};

/// The way in, for a task that is still outside, and the site's settings there.
struct WayIn {
  SitePolicy site;
  ContainerNamespaces namespaces;
};
/// What record, notes and site say. Adds to `spec`.
Result<WayIn> read_ready(ReadyContainer& ready, const TaskNotes& notes, const TaskContext& task,
                         KnownSite& known, ContainerSpec& spec);
Result<void> go_in(const WayIn& way, const TaskContext& task, ContainerSpec& spec);

/// A follower: somebody else has set the container up.
Result<InContainer> follow(AgentMessage ready, const TaskContext& task, KnownSite& known);

}  // namespace spc
