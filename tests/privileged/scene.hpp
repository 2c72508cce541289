#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "agent/agent.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// One step whose agent is real and whose only task is this process.
class Step {
 public:
  static constexpr uid_t kUser = 4343;

  /// Forks the agent; its tools are those of a fresh store unless `change` does something about
  /// them.
  explicit Step(const std::function<void(agent::AgentTools&)>& change = [](agent::AgentTools&) {});
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step();

  /// Joins, orders a container and sets its root up with nothing; the last message of the agent.
  /// `image`: of a file or directory; `request`: a file with what `import` is told, if it is asked.
  TaskMessage start(std::uint32_t flags, const UniqueFd& request, const UniqueFd& image,
                    const Digest& manifest = {}, std::uint64_t offset = 0);
  /// Joins by a socket that a process of this user has made; false: the agent does not want it.
  /// `mount_namespace`: -1: this process's.
  bool join(uid_t maker, int mount_namespace = -1);
  /// Only the order, and the request if `import` begins; what becomes of it is not waited for.
  void order(std::uint32_t flags, const UniqueFd& request, const UniqueFd& image,
             const Digest& manifest = {}, std::uint64_t offset = 0);
  /// The agent's next message; false: there is none any more.
  bool hear(TaskMessage& message) const;
  /// The task's line, and the step's: for who says something else.
  [[nodiscard]] int line() const { return socket_.get(); }
  [[nodiscard]] int common() const { return common_.get(); }
  /// Ends the step as slurmstepd does: the agent ends by itself; false: it has not within two
  /// seconds.
  bool end();
  /// Whether this holds inside the container, where it is executed as the user.
  bool inside(const std::function<bool()>& check) const;
  /// Kills the agent as scancel does.
  void kill_agent();
  /// Receives the tmpfs mounts that an agent, which has ended, has sent to its keeper. Returns the
  /// bytes used in them.
  std::uint64_t used_bytes_of_kept_tmpfs() const;
  /// Ends the task's own hold on the container.
  void leave();

 private:
  pid_t agent_ = -1;
  UniqueFd common_;
  UniqueFd keeper_;
  UniqueFd socket_;
  UniqueFd container_;
};

/// Processes that run this program as the user of the steps.
int running(const std::string& program);
/// Waits up to two seconds.
bool becomes_true(const std::function<bool()>& condition);

}  // namespace spc
