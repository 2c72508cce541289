#pragma once

#include <functional>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/host/user_source.hpp"
#include "launch/request/messages.hpp"
#include "protocol/task.hpp"
#include "task/entering/arrival.hpp"

namespace spc {

/// Adds hints to the agent's error, which root's code does not word.
Error with_advice(Error error);

/// A task's line to the agent, used by the leader as long as it runs. The agent's end, or its word
/// that the start has failed, ends the line: the Error of await() is then what the task ends with.
class AgentLine {
 public:
  /// `style`: of progress, as it is known at that moment.
  AgentLine(UniqueFd socket, const MessageStyle& style, Log& log)
      : socket_(std::move(socket)), style_(style), log_(log) {}

  /// The next message of one of these kinds. Shows progress and warnings; meanwhile user-source
  /// answers what `import` asks.
  Result<AgentMessage> await(std::initializer_list<TaskMessageKind> kinds);
  /// What `import` says for the administrator's log, without kPullRecord; otherwise nobody hears of
  /// it.
  void take_records(std::function<void(std::string_view)> take) { take_record_ = std::move(take); }
  /// How the leader answers import_asks, serves and sources.
  void answer_by(std::function<Result<void>(AgentMessage&)> answer) { answer_ = std::move(answer); }
  /// Tells the agent, for whose word the other tasks wait, what went wrong, unless it knows. It
  /// then tells every task, this one too: that is given back.
  Error fail(const Error& error);
  /// From here on a failure concerns nobody but this task.
  void end() { has_ended_ = true; }

  [[nodiscard]] int socket() const { return socket_.get(); }
  UserSource& user_source() { return user_source_; }

 private:
  Result<AgentMessage> receive();

  UniqueFd socket_;
  const MessageStyle& style_;
  Log& log_;
  UserSource user_source_;
  bool has_ended_ = false;
  std::function<void(std::string_view)> take_record_;
  std::function<Result<void>(AgentMessage&)> answer_;
};

}  // namespace spc
