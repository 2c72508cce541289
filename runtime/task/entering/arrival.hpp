#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"
#include "task/entering/enter.hpp"

namespace spc {

/// A task's way into its container, from the moment in which it runs as the user until it has no
/// capability any more. On that way it may do what its user may not, so it looks at nothing that
/// the user has written: neither options nor environment nor the site's files. It knows numbers
/// and descriptors, of messages of fixed size, and hands texts on unread. The functions of
/// TaskStart read, in processes of their own without capabilities; the task does once it is
/// inside, or has given up. tests/architecture counts this room, and what it includes.

struct AgentMessage : TaskMessage {
  std::vector<UniqueFd> descriptors;
};

/// Receives one message. End of file is the Error that the agent has exited.
Result<AgentMessage> receive_from_agent(int socket);

/// When a process of the step has ended that we wait for: scancel ends them one after the other,
/// and the next one has nothing to say. Returns after half a second if we are not ended.
void let_scancel_end_us();
Error agent_has_ended();

/// How the leader has ended.
enum class Led : std::uint32_t {
  set_up = 1,  ///< the container's root; the agent's word that it is ready comes next
  joined,      ///< a container that runs already, where there was nothing to set up
  outside,     ///< this task is to stay on the host
  explained,   ///< what would be executed; nothing is
  pulled,      ///< the image, and no more was asked for
  removed,     ///< the container of this name; there is none now
  left,        ///< another task of the step explains
  again,  ///< it starts what slurmstepd is to wait for, so that it has to be slurmstepd's child
          ///< itself; nothing is done yet
};

/// From the leader to the task that waits for it: how it has ended, its last word; or a location,
/// and with it the socket on which user-source is to answer for podman.
struct LeaderMessage {
  enum Kind : std::uint32_t { led = 1, failed, start_user_source } kind{};
  Led how{};
  bool explains = false;  ///< led: joined, in order to say what would be executed
  WireError error;
  Text<4096> location;
};

/// Input of a leader's process. Descriptors belong to the task.
struct LeaderStart {
  int agent;                   ///< the task's line to the agent, meanwhile the leader's
  const AgentMessage& policy;  ///< the agent's word to lead
  int notes;                   ///< to write TaskNotes into
  ChildOf parent;              ///< whose child it is
  int task;                    ///< takes LeaderMessages
};

/// A leader that has said its last word: it gets a moment to end, and is gone with this object.
struct EndingLeader {
  Child process;
  void await();  ///< at once
  EndingLeader() = default;
  EndingLeader(const EndingLeader&) = delete;
  EndingLeader& operator=(const EndingLeader&) = delete;
  ~EndingLeader() { await(); }
};

/// Messages and descriptors that a task has received until it is inside.
struct Arrival {
  std::optional<Led> led;     ///< by a process of this task; nothing: it follows
  bool is_first = false;      ///< of all that lead on this node
  AgentMessage ready;         ///< its first descriptors: mount namespace, image record
  UniqueFd notes;             ///< TaskNotes, as the agent passes them on
  UniqueFd answer;            ///< of TaskStart::ask_host, or empty
  UniqueFd own_notes;         ///< the same as `notes` and locked, in the task that led
  UniqueFd probe;             ///< container-helper, opened on the host
  int no_probe = 0;           ///< errno: why it is not
  WireError failure;          ///< as others have said it, unread; not set: of this process
  bool agent_failed = false;  ///< it is the agent's word
  EndingLeader leader;
};

struct TaskStart {
  int step;                      ///< the step's common socket to the agent
  pid_t agent_group;             ///< StepAgent::group()
  const char* const* variables;  ///< the job's environment, for user-source; never looked at
  /// The PolicyRecord::TaskFlags that the agent has said are written here, before anything below.
  std::int64_t& task_flags;
  /// In the leader's process, which has CAP_SYS_CHROOT, unused. Returns its exit status.
  std::function<int(const LeaderStart&)> lead;
  /// In a process without capabilities, on the host: writes TaskNotes into `answer`.
  std::function<Result<void>(const Arrival&, int answer)> ask_host;
  /// In the task itself, on the host, when all is ready; may be empty. It is part of this way.
  std::function<void()> before_entering;
};

/// Takes the calling task, which runs as the user, is single-threaded, and has kept its privilege
/// (spc_task_keep_privilege), into the step's container. Returns without any capability: inside,
/// or, if it is an Error or Arrival::led says so, on the host, and then without no_new_privs.
Result<void> arrive(const TaskStart& start, Arrival& arrival);

/// The end of the way for a task that does not take it. Ends the process where that is refused.
void give_up_entering();

/// Starts user-source with an image's canonical location; it answers on `socket`. `environment`:
/// NAME=VALUE, the job's. In a process that still may gain what any process of the user may gain:
/// podman makes its user namespace with newuidmap.
Result<Child> start_user_source(int socket, const std::string& location,
                                std::vector<std::string> environment);

}  // namespace spc
