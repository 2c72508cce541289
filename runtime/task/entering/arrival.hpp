#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"
#include "protocol/wire_error.hpp"
#include "task/entering/enter.hpp"

namespace spc {

// --- visit ---

/// Executes `work` in a child, so that the caller keeps its credentials and namespaces. Returns the
/// Error of `work`. `what`: purpose of the child, for the error if it ends without a report.
Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what);
/// Does the same for a caller that must not read texts: the error of `work` is in `said`, unread.
Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what,
                       WireError& said);

/// Executes `inside` in an unprivileged child whose root directory is `root`. The caller's root
/// does not change.
Result<void> visit_root(int root, const std::function<Result<void>()>& inside);

// --- arrival ---

/// Entering a container, from the moment when a task runs as the user until it has no capability
/// any more. In between the task has privileges that its user lacks, so it reads no data of the
/// user: neither options nor environment nor the site's files. It reads numbers and descriptors
/// from messages of fixed size, and passes texts on unread. The functions of TaskStart read texts,
/// in separate processes without capabilities. The task itself reads them only inside the container
/// or after it has given up entering. tests/architecture counts this room, and its includes.

struct AgentMessage : TaskMessage {
  std::vector<UniqueFd> descriptors;
};

/// Receives one message. End of file is reported as the Error that the agent has exited.
Result<AgentMessage> receive_from_agent(int socket);

/// Waits up to half a second to be ended, after an awaited process of the step has ended. scancel
/// ends processes one after the other, so this one should not report the end of the first as an
/// error.
void let_scancel_end_us();
Error agent_has_ended();

/// How a leader has ended.
enum class LeaderEnd : std::uint32_t {
  set_up = 1,  ///< the container's root is set up; the agent reports ready next
  joined,      ///< the container already runs and needs no set-up
  outside,     ///< this task is to stay on the host
  explained,   ///< --container-explain: printed the command, executed nothing
  pulled,      ///< only the image was requested, and it is pulled
  removed,     ///< the container of this name does not exist any more
  left,        ///< another task of the step prints the explanation
  again,       ///< no action yet: slurmstepd must wait for a process that the leader starts, so the
               ///< leader must be slurmstepd's child
};

/// A message from the leader to the waiting task: how it has ended, as its last message. Or a
/// location, together with the socket on which user-source answers for podman.
struct LeaderMessage {
  enum Kind : std::uint32_t { led = 1, failed, start_user_source } kind{};
  LeaderEnd how{};
  bool explains = false;  ///< led: joined, in order to explain what would be executed
  WireError error;
  Text<4096> location;
};

/// Input of a leader's process. Descriptors belong to the task.
struct LeaderStart {
  int agent;                   ///< the task's connection to the agent, used by the leader meanwhile
  const AgentMessage& policy;  ///< the agent's order to lead
  int notes;                   ///< the TaskEntry is written here
  ChildOf parent;              ///< the leader's parent
  int task;                    ///< receives LeaderMessages
};

/// A leader that has sent its last message. It gets a moment to end; the destructor ends it.
struct EndingLeader {
  Child process;
  void await();  ///< immediately
  EndingLeader() = default;
  EndingLeader(const EndingLeader&) = delete;
  EndingLeader& operator=(const EndingLeader&) = delete;
  ~EndingLeader() { await(); }
};

/// Messages and descriptors that a task has received before it is inside.
struct Arrival {
  std::optional<LeaderEnd> led;  ///< set if a process of this task led; empty: the task follows
                                 ///< another one
  bool is_first = false;   ///< first of the node's leading tasks
  AgentMessage ready;      ///< the agent's last message. If the container is ready, its first
                           ///< descriptors are mount namespace and image record
  UniqueFd notes;          ///< the TaskEntry, as the agent passes it
  UniqueFd answer;         ///< result of TaskStart::ask_host, or empty
  UniqueFd own_notes;      ///< the same as `notes` and locked, in the leading task
  UniqueFd probe;          ///< container-helper, opened on the host
  int no_probe = 0;        ///< errno of the failed open
  WireError failure;       ///< received from another process, unread; unset if this process
                           ///< failed
  EndingLeader leader;
};

struct TaskStart {
  int step;                      ///< the step's common socket to the agent
  pid_t agent_group;             ///< StepAgent::group()
  const char* const* variables;  ///< the job's environment, for user-source; never read here
  /// Receives the PolicyRecord::TaskFlags that the agent has sent, before any function below is
  /// called.
  std::int64_t& task_flags;
  /// Runs in the leader's process, which has CAP_SYS_CHROOT, unused. Returns its exit status.
  std::function<int(const LeaderStart&)> lead;
  /// Runs in a process without capabilities, on the host: writes a TaskEntry into `answer`.
  std::function<Result<void>(const Arrival&, int answer)> ask_host;
  /// Runs in the task itself, on the host, when everything is ready, with its privilege; may be
  /// empty.
  std::function<void()> before_entering;
};

/// Takes the calling task into the step's container. The task runs as the user, is single-threaded,
/// and has kept its privilege (spc_task_keep_privilege). Returns without any capability. The task
/// is then inside, or on the host without no_new_privs if an Error or Arrival::led says so.
Result<void> arrive(const TaskStart& start, Arrival& arrival);

/// Drops the privilege of a task that does not enter a container. Ends the process if that fails.
void give_up_entering();

/// Starts user-source with an image's canonical location; it answers on `socket`. `environment`:
/// the job's, as NAME=VALUE. The caller must still be able to gain privilege as any process of the
/// user: podman makes its user namespace with newuidmap.
Result<Child> start_user_source(int socket, const std::string& location,
                                std::vector<std::string> environment);

}  // namespace spc
