#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "launch/end_report.hpp"
#include "launch/hooks/hook_edits.hpp"
#include "launch/launch.hpp"
#include "launch/site/site_request.hpp"
#include "launch/sources/image_order.hpp"
#include "launch/sources/named_container.hpp"
#include "launch/step_end.hpp"
#include "launch/task/task_notes.hpp"
#include "protocol/task.hpp"
#include "task/entering/arrival.hpp"

namespace spc {

// --- leader process ---

/// The errno with which the leader ends the other tasks of the step after LeaderEnd::removed. No
/// failure of a start has it.
inline constexpr int kRemovedErrno = EIDRM;
inline bool removes(const LaunchRequest& request) {
  return request.name && request.name->use == ContainerName::Use::remove;
}

/// Runs in the leader's process, a copy of the task without privilege. Reads the texts of user,
/// site and image, sets the container up, and reports the outcome to task and agent. Returns the
/// exit status.
int lead(const TaskCall& call, const LeaderStart& start);

// --- agent line ---

/// A task's connection to the agent, used by the leader while it runs. The agent's end, or its
/// message `failed`, ends the connection: await() then returns the Error with which the task ends.
class AgentLine {
 public:
  /// `style`: the style of progress, read whenever a line is printed.
  AgentLine(UniqueFd socket, const MessageStyle& style, Log& log)
      : socket_(std::move(socket)), style_(style), log_(log) {}

  /// Returns the next message of one of these kinds. Shows progress and warnings meanwhile, and
  /// user-source answers the requests of `import`.
  Result<AgentMessage> await(std::initializer_list<TaskMessageKind> kinds);
  /// Sets the receiver of the records of `import` for the administrator's log, without kPullRecord.
  /// Records are dropped if it is not set.
  void take_records(std::function<void(std::string_view)> take) { take_record_ = std::move(take); }
  /// Sets how the leader answers import_asks, serves and sources.
  void answer_by(std::function<Result<void>(AgentMessage&)> answer) { answer_ = std::move(answer); }
  /// Reports the failure to the agent unless the agent knows of it. The agent then sends `failed`
  /// to every task including this one; returns the resulting Error.
  Error fail(const Error& error);

  [[nodiscard]] int socket() const { return socket_.get(); }
  UserSource& user_source() { return user_source_; }

 private:
  UniqueFd socket_;
  const MessageStyle& style_;
  Log& log_;
  UserSource user_source_;
  bool has_ended_ = false;  ///< later failures are this task's alone
  std::function<void(std::string_view)> take_record_;
  std::function<Result<void>(AgentMessage&)> answer_;
};

// --- leader ---

/// The leader: orders the step's container from the agent and sets its root up; private containers
/// are set up one after the other. It is a separate process, which reads all untrusted texts and
/// has no capability except CAP_SYS_CHROOT: for steps inside, it changes its root to the
/// container's. The processes that it has started on the host live as long as this object.
class Leader {
 public:
  Leader(const TaskContext& task, AgentLine& line, const LeaderStart& start)
      : task_(task), line_(line), start_(start), importer_(task.job) {}

  /// Leads until the root is set up. The caller reports an Error to the agent. `stays`: called when
  /// the result will not be LeaderEnd::again.
  Result<LeaderEnd> lead(const std::function<void()>& stays);

 private:
  [[nodiscard]] bool is_first() const { return start_.policy.manifest == Digest(); }
  [[nodiscard]] bool stays_outside() const;
  [[nodiscard]] bool runs_stop_hooks() const;
  Result<LeaderEnd> pull();
  Result<void> start_processes();
  Result<void> settle_name();
  void note_step();
  Result<LeaderEnd> remove_named();
  Result<void> order();
  Result<void> answer(AgentMessage& message);
  Result<LeaderEnd> build();
  Result<std::string> image_below() const;
  Result<void> run_shell_hooks(AgentMessage message);
  Result<void> set_up(const AgentMessage& message);
  Result<void> set_up_inside(const Digest& manifest, bool asks_host);
  void take_back();
  /// Collects, on the host, what the report of the step's end needs. Returns whether there will be
  /// one: not of a container that is joined or explained.
  bool collect_end_facts();
  Result<void> explain_instead();

  // In container_order.cpp: what the agent is to build.

  /// Returns whether the container is running.
  [[nodiscard]] bool joins() const { return (image_.flags & TaskMessage::start_join) != 0; }
  /// Returns whether a new container is made.
  [[nodiscard]] bool makes() const { return !request_.only_pull && !joins(); }
  /// Returns whether a mount covers the user's home.
  [[nodiscard]] bool covers_home() const { return mounts_home_ || (request_.contain && !joins()); }
  /// Reads the site's texts, which arrived with the policy, and enroot's files, and completes the
  /// request.
  Result<void> complete_request();
  /// Decides the order and opens its files, on the host, as the user.
  Result<void> plan();
  Result<void> plan_image();
  Result<void> decide_name(const WantedImage& wanted);
  Result<void> plan_mounts();
  /// Sends the order. `flags`: TaskMessage::StartFlags in addition to the image's.
  Result<void> send_start(std::uint32_t flags) const;
  /// Sends the mount sources to the builder, except image files.
  Result<void> send_sources() const;
  /// Sends the file of this number to the server at the other end of `server`: the image first,
  /// then the mounted files.
  Result<void> send_file(std::uint32_t number, int server) const;
  /// Adds the user to the root's set-up, while the builder works, not later: inside, the image's
  /// name service would look up the user.
  void add_user();

  const TaskContext& task_;
  AgentLine& line_;
  const LeaderStart& start_;
  LaunchRequest request_;  ///< completed by the site
  TaskEntry entry_;
  std::optional<StepHooks> hooks_;
  HookEdits by_shell_hooks_;
  ImageLocation location_;
  ImageOrder image_;
  std::uint64_t upper_size_ = 0;  ///< bytes of each writable part; 0: the site's limit
  bool mounts_home_ = false;
  std::string image_below_;  ///< of which only the changes are saved; empty: save all, or nothing
  StopProcess stop_process_;
  Saver saver_;
  bool reports_ = false;  ///< of the step's end
  EndFacts end_;
  SiteImporter importer_;
  NamedStart named_;
  ContainerNote note_;  ///< note of the named container
};

}  // namespace spc
