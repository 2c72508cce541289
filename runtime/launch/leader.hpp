#pragma once

#include <functional>
#include <optional>

#include "launch/after/saver.hpp"
#include "launch/after/stop_process.hpp"
#include "launch/agent_line.hpp"
#include "launch/container_order.hpp"
#include "launch/host/container_index.hpp"
#include "launch/in_container.hpp"
#include "launch/leader_process.hpp"

namespace spc {

/// Orders the step's container from the agent and sets its root up; where containers are private,
/// one after the other. It is a process of its own, which reads everything that others have written
/// and has no privilege but CAP_SYS_CHROOT: for what is to be done inside, it makes the container's
/// root its own. What it has started on the host lives as long as this object.
class Leader {
 public:
  /// `notes`: the file for TaskNotes. `parent`: whose child this process is.
  Leader(const TaskContext& task, AgentLine& line, int notes, ChildOf parent)
      : task_(task), line_(line), notes_(notes), parent_(parent), importer_(task.job) {}

  /// From the agent's word to lead until the root is set up. An Error is the caller's to tell the
  /// agent. `stays`: called when it will not be Led::again.
  Result<Led> lead(const AgentMessage& policy, const std::function<void()>& stays);

 private:
  /// The container between its order and the agent's word that it is ready.
  struct Ordered {
    ContainerSpec spec;
    TaskSecurity security;
    RootSetup root;
    std::optional<PreparedHooks> hooks;  ///< none: the container runs already
    std::string image_below;  ///< of which only the changes are saved; empty: all is, or nothing
  };

  [[nodiscard]] bool runs_stop_hooks(const Terms& terms, const TaskHooks& hooks) const;
  Result<Led> pull(const Terms& terms, TaskHooks& hooks);
  Result<void> start_processes(const Terms& terms, const TaskHooks& hooks);
  Result<void> settle_name(const Terms& terms);
  Result<Led> remove_named();
  Result<Ordered> order(const Terms& terms, TaskHooks& hooks);
  Result<void> answer(AgentMessage& message, const std::string& meeting);
  Result<Led> build(Terms& terms, TaskHooks& hooks, Ordered& container);
  Result<std::string> image_below(const Terms& terms, const ContainerSpec& spec) const;
  Result<void> run_shell_hooks(AgentMessage message, const Terms& terms, const TaskHooks& hooks,
                               Ordered& container);
  Result<TaskEdits> set_up(const AgentMessage& message, const Terms& terms, TaskHooks& hooks,
                           Ordered& container);
  Result<TaskEdits> set_up_inside(const Terms& terms, TaskHooks& hooks, Ordered& container,
                                  const Digest& manifest);
  void take_back();
  Result<void> explain_instead(Terms& terms, TaskHooks& hooks, ContainerSpec& spec,
                               TaskEdits edits);

  const TaskContext& task_;
  AgentLine& line_;
  int notes_;
  ChildOf parent_;
  StopProcess stop_process_;
  Saver saver_;
  SiteImporter importer_;
  ContainerOrder order_;  ///< what is opened of it is kept until the builder has it
  NamedStart named_;
  ContainerNote note_;  ///< of the container with a name
};

}  // namespace spc
