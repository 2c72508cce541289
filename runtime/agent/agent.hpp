#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <vector>

#include "agent/builder.hpp"
#include "agent/image_store.hpp"
#include "agent/named_container.hpp"
#include "protocol/fuse.hpp"
#include "protocol/import.hpp"
#include "protocol/task.hpp"

namespace spc::agent {

/// The root side of one step on one node: gives its tasks one container. It only waits for events,
/// so that it can be killed at any time. It ends, with its helpers, when slurmstepd has closed the
/// common socket.
class Agent {
 public:
  /// `tools` may be an Error, which every task then receives.
  Agent(const StepId& step, UniqueFd common, Result<AgentTools> tools);
  void run();

 private:
  struct Child {
    pid_t pid = -1;
    UniqueFd socket;
  };

  /// The awaited descriptor (-1: none) and its handler. An error ends the container.
  struct Event {
    int descriptor;
    Result<void> (Agent::*handler)(int descriptor);
  };
  Result<void> on_join(int socket);
  Result<void> on_lead(int socket);
  Result<void> on_import(int socket);
  Result<void> on_builder(int socket);
  Result<void> on_holder(int socket);
  Result<void> on_peer(int listener);

  Result<void> start(const TaskMessage& message);
  Result<void> find(const TaskMessage& message);
  Result<void> look();
  Result<void> say_found(std::uint32_t state);
  Result<void> join_running();
  static std::vector<int> numbers_of(const std::vector<UniqueFd>& descriptors);
  Result<void> start_import();
  Result<void> start_for_import(int socket, const ImportMessage& message);
  Result<void> put_object(int import) const;
  Result<void> use(const Digest& manifest, ImageFiles image);
  Result<void> serve(std::span<const UniqueFd> files);
  Result<void> start_builder();

  Result<void> lead();          ///< the first waiting task
  void tell(const Task& task);  ///< its answer, if known
  Result<void> tell_all(TaskMessageKind kind, std::string_view text);
  void answer_all(const TaskMessage& answer);
  void fail(const Error& error);
  [[noreturn]] void end();
  void reap(Child& child);

  StepId step_;
  UniqueFd common_;
  UniqueFd steps_socket_;  ///< for clients that know the step's numbers
  Result<AgentTools> tools_;

  std::vector<Task> tasks_;  ///< waiting; the first one is the leader
  BuildOrder order_;
  Digest image_;       ///< in the store, admitted for this step
  Digest image_name_;  ///< the only name that import may write
  Child import_;
  Child builder_;
  std::vector<UniqueFd> servers_;   ///< control sockets: protocol/fuse.hpp
  std::vector<UniqueFd> to_serve_;  ///< layers, or sockets on which import sends layers
  static constexpr std::size_t kMostHelpers = 1000;
  /// Servers, publishers, the init process of a PID namespace, and killed helpers. They exit on
  /// their own or with the agent.
  std::vector<pid_t> helpers_;
  std::uint64_t began_ = 0;
  std::vector<LayerFile> layers_;  ///< of the container; a layer served from a copy holds no lock
  Result<void> held_;  ///< result of holding the layers for the job's later steps; its errno
                       ///< becomes the exit code

  std::optional<NamedContainer> named_;
  bool replace_ = false;  ///< ignore what is stored under the name
  /// The container belongs to another agent, and its state is not known yet.
  bool looking_ = false;
  UniqueFd holder_;  ///< the agent that has the container; it answers when the container is ready
  std::optional<TaskMessage> joined_;  ///< the answer

  std::optional<TaskMessage> answer_;  ///< ready or failed, when known
  std::vector<UniqueFd> inits_;        ///< closing them ends the init processes of PID namespaces
  UniqueFd notes_;                     ///< for the leader to write
  std::vector<UniqueFd>
      namespaces_;  ///< passed with `ready`: mount namespace, record, notes, own namespaces
};

}  // namespace spc::agent
