#pragma once

#include "base/process/child.hpp"
#include "launch/agent_line.hpp"
#include "launch/inside/entrypoint.hpp"
#include "launch/launch.hpp"

namespace spc {

/// How the leader has ended.
enum class Led : std::uint32_t {
  set_up = 1,  ///< the container's root; the agent's word that it is ready comes next
  joined,      ///< a container that runs already, where there was nothing to set up
  outside,     ///< this task is to stay on the host
  explained,   ///< what would be executed; nothing is
  pulled,      ///< the image, and no more was asked for
  removed,     ///< the container of this name; there is none now
  again,       ///< it starts what slurmstepd is to wait for, so that it has to be slurmstepd's child itself; nothing is done yet
};

/// What the other tasks are told after Led::removed, as an error.
inline constexpr char kRemoved[] = "the container was removed";
inline bool removes(const LaunchRequest& request) { return request.name && request.name->use == ContainerName::Use::remove; }

/// A leader that has said its last word: it gets a moment to end, and is gone with this object.
struct EndingLeader {
  Child process;
  void await();  ///< at once
  EndingLeader() = default;
  EndingLeader(const EndingLeader&) = delete;
  EndingLeader& operator=(const EndingLeader&) = delete;
  ~EndingLeader() { await(); }
};

/// Starts the leader, a copy of this process without privilege that reads what the user, the site and the image say, and
/// waits for its end. Meanwhile `line` is the leader's. `policy`: the agent's word to lead, from
/// which the notes are taken that the leader writes for all tasks, and `entrypoint` after it. An
/// Error is known to the agent.
Result<Led> run_leader(const TaskCall& call, AgentLine& line, AgentMessage& policy,
                       Entrypoint& entrypoint, EndingLeader& leader);

}  // namespace spc
