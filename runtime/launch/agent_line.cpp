#include "launch/agent_line.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/socket.hpp"

namespace spc {
namespace {

Error agent_has_ended() {
  return Error(ErrorKind::unavailable, "set up the container: the agent exited").hint("try again; see slurmd's log on the node");
}

}  // namespace

Result<UniqueFd> AgentLine::join(const StepChannel& step) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const UniqueFd mount_namespace(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!mount_namespace) return Error::from_errno(errno, "open the task's mount namespace");
  TaskMessage message;
  message.kind = TaskMessageKind::join;
  const int passed[] = {theirs.get(), mount_namespace.get()};
  if (!send_struct(step.tasks.get(), message, passed)) return agent_has_ended();
  return std::move(ours);
}

Result<AgentMessage> AgentLine::await(std::initializer_list<TaskMessageKind> kinds) {
  for (;;) {
    auto received = receive();
    if (received && std::ranges::find(kinds, received->kind) != kinds.end()) return received;
    if (!received) {
      end();
      return received;
    }
    switch (received->kind) {
      case TaskMessageKind::progress:
        // A step of pyxis says two lines, and scripts count on it.
        if (style_ == MessageStyle::own) log_.write(LogLevel::info, received->text.view());
        break;
      case TaskMessageKind::warning: log_.write(LogLevel::warning, received->text.view()); break;
      case TaskMessageKind::failed: end(); return received->failure.error();
      default: end(); return Error(ErrorKind::internal, "unexpected message from the agent");
    }
  }
}

Result<AgentMessage> AgentLine::receive() {
  SPC_TRY(user_source_.wait_for(socket_.get()));
  AgentMessage message;
  auto descriptors = receive_struct(socket_.get(), static_cast<TaskMessage&>(message), kMaxDescriptorsPerMessage);
  if (!descriptors) return agent_has_ended();
  message.descriptors = *std::move(descriptors);
  return message;
}

Error AgentLine::fail(const Error& error) {
  if (has_ended_) return error;
  TaskMessage message;
  message.kind = TaskMessageKind::failed;
  message.failure = WireError(error);
  if (!send_struct(socket_.get(), message)) return agent_has_ended();
  return await({}).error();
}

}  // namespace spc
