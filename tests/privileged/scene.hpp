#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "agent/agent.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// One step with a real agent. Its only task is this process.
class Step {
 public:
  static constexpr uid_t kUser = 4343;

  /// Forks the agent. Its tools are those of an empty store unless `change` modifies them.
  explicit Step(const std::function<void(agent::AgentTools&)>& change = [](agent::AgentTools&) {});
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step();

  /// Joins, requests a container and sets its root up without mounts. Returns the agent's last
  /// message. `image`: a file or directory. `request`: the input of `import`, if it is started.
  TaskMessage start(std::uint32_t flags, const UniqueFd& request, const UniqueFd& image,
                    const Digest& manifest = {}, std::uint64_t offset = 0);
  /// Joins and passes a mount namespace to the builder. -1: this process's. Returns whether the
  /// agent makes this task the leader.
  bool join(int mount_namespace = -1);
  /// Sends only the order, and the request if `import` starts. Does not wait for the result.
  void order(std::uint32_t flags, const UniqueFd& request, const UniqueFd& image,
             const Digest& manifest = {}, std::uint64_t offset = 0);
  /// Receives the agent's next message. Returns false at the end of the stream.
  bool hear(TaskMessage& message) const;
  /// Returns the task's socket to the step, for tests that send other messages.
  [[nodiscard]] int line() const { return socket_.get(); }
  [[nodiscard]] int common() const { return common_.get(); }
  /// Ends the step as slurmstepd does. The agent must end on its own. Returns false if it has not
  /// within two seconds.
  bool end();
  /// Returns whether `check` holds inside the container, where it runs as the user.
  bool inside(const std::function<bool()>& check) const;
  /// Kills the agent as scancel does.
  void kill_agent();
  /// Receives the tmpfs mounts that an ended agent sent to its keeper. Returns the bytes used in
  /// them.
  std::uint64_t used_bytes_of_kept_tmpfs() const;
  /// Releases the task's own hold on the container.
  void leave();

 private:
  pid_t agent_ = -1;
  UniqueFd common_;
  UniqueFd keeper_;
  UniqueFd socket_;
  UniqueFd container_;
};

/// Returns the processes that run this program as the user of the steps.
std::vector<pid_t> processes_of(const std::string& program);
/// Returns their number.
int running(const std::string& program);
/// Waits up to ten seconds for the condition.
bool becomes_true(const std::function<bool()>& condition);

}  // namespace spc
