#pragma once

#include <optional>

#include "launch/after/saver.hpp"
#include "launch/after/stop_process.hpp"
#include "launch/container_order.hpp"
#include "launch/in_container.hpp"

namespace spc {

/// The first task of a node's step, or each in turn where containers are private: it orders the container from the agent and
/// sets its root up. What it has started lives as long as this object.
class Leader {
 public:
  Leader(const TaskContext& task, AgentLine& line, KnownSite& known)
      : task_(task), line_(line), known_(known), importer_(task.job) {}

  /// From the agent's word to lead until the task is inside. Nothing: the task stays outside. An Error is the caller's to
  /// tell the agent.
  Result<std::optional<InContainer>> lead(AgentMessage policy);

 private:
  /// The container between its order and the agent's word that it is ready.
  struct Building {
    ContainerSpec spec;
    RootSetup root;
    std::optional<PreparedHooks> hooks;  ///< none: the container runs already
    Entrypoint entrypoint;
    std::optional<UserIdentity> recorded_as;
  };
  /// Where this process is when the container is ready; untouched: on the host, and it has set nothing up.
  enum class Place { host, container, untouched };
  struct Built {
    AgentMessage ready;
    UniqueFd to_save;
    Place place = Place::host;
  };

  Result<void> start_processes(const Terms& terms, const TaskHooks& hooks);
  Result<void> settle_name(const Terms& terms);
  Result<Building> order(const Terms& terms, TaskHooks& hooks);
  Result<Built> build(const Terms& terms, TaskHooks& hooks, Building& container);
  Result<void> run_shell_hooks(AgentMessage message, const Terms& terms, const TaskHooks& hooks, Building& container);
  Result<Place> set_up(AgentMessage message, const Terms& terms, TaskHooks& hooks, Building& container);
  Result<void> set_up_inside(const Terms& terms, TaskHooks& hooks, Building& container, const Digest& manifest);
  Result<AgentMessage> await_ready(UniqueFd& to_save);

  const TaskContext& task_;
  AgentLine& line_;
  KnownSite& known_;
  StopProcess stop_process_;
  Saver saver_;
  SiteImporter importer_;
  NamedStart named_;
};

}  // namespace spc
