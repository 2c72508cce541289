#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/host/user_source.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "protocol/task.hpp"
#include "task/step_agent.hpp"

namespace spc {

/// What launch() was called with.
struct TaskContext {
  const LaunchRequest& asked;
  const std::map<std::string, std::string>& job;  ///< the job's environment
  const StepChannel& step;
  Log& log;
  const std::function<void()>& before_entering;

  /// The file that the container becomes on this node, if it does.
  [[nodiscard]] std::optional<std::string> save_path() const;
};

/// The site's settings as far as a task can know them; plugstack.conf wins. Read once: many tasks wait on a node, and each
/// hears of every progress. The leader is told them by the agent.
class KnownSite {
 public:
  explicit KnownSite(const LaunchRequest& asked) : asked_(asked) {}
  const SitePolicy& get();
  void learn(SitePolicy site);

 private:
  const LaunchRequest& asked_;
  std::optional<SitePolicy> site_;
};

struct AgentMessage : TaskMessage {
  std::vector<UniqueFd> descriptors;
};

/// The socket that fails on the line's other end, or the agent's word that the start has failed, ends the line: the Error
/// of await() is then what the task ends with.
class AgentLine {
 public:
  /// This task's own socket to the agent, asked for on the step's common one.
  static Result<UniqueFd> join(const StepChannel& step);
  AgentLine(UniqueFd socket, const TaskContext& task, KnownSite& site);

  /// The next message of one of these kinds. Shows progress and warnings; meanwhile user-source answers what `import` asks.
  Result<AgentMessage> await(std::initializer_list<TaskMessageKind> kinds);
  /// Tells the agent, for whose word the other tasks wait, what went wrong, unless it knows. It then tells every task, this
  /// one too: that is given back.
  Error fail(const Error& error);
  /// From here on a failure concerns nobody but this task.
  void end() { has_ended_ = true; }

  [[nodiscard]] int socket() const { return socket_.get(); }
  UserSource& user_source() { return user_source_; }

 private:
  Result<AgentMessage> receive();
  Error failure(const AgentMessage& message);

  UniqueFd socket_;
  const TaskContext& task_;
  KnownSite& site_;
  UserSource user_source_;
  bool has_ended_ = false;
};

/// The lines about an import that pyxis writes; ours say how far it is instead.
void say_import(const TaskContext& task, Event event);

}  // namespace spc
