#include "launch/agent_line.hpp"

#include <algorithm>
#include <string_view>

#include "base/socket.hpp"
#include "protocol/bytes_from.hpp"

namespace spc {
namespace {

struct Advice {
  std::string_view about;  ///< part of the text
  const char* advice;
};
constexpr Advice kAdvice[] = {
    {"open store directory ", "restart slurmd, which creates the store"},
    {"open the image store ", "restart slurmd, which creates the store"},
    {"open directory \"" SPC_STORE_DIR, "restart slurmd, which creates the store"},
    {": not a read-only file owned by root", "remove it from the store; it will be pulled again"},
    {"reduce the capabilities: ", "the agent must be started as root"},
    {"create the ID map: ", "check sysctl user.max_user_namespaces"},
    {"no service user for images", "create the system user spank-container and restart slurmd"},
    {"start \"/", "install spank-container on this node"},
    {"running container with remapped root: not supported",
     "request it in the step that starts the container"},
    {"use file system ", "load the kernel module"},
    {": a file system is mounted below it", "unmount it, or copy the directory"},
    {"read the image directory: ",
     "its FUSE file system must allow other users, root included: copy it to a local disk"},
    {"mount overlay in the store: ",
     "the store must be on a local file system, such as ext4 or xfs"},
    {"make a container with a name: the user has ",
     "use one again, for example with NAME:replace, or ask the administrator to remove some"},
    {"mount overlay: device or resource busy",
     "processes of a step that lost its agent still use the container"},
    {"open \"/dev/loop-control\": ", "load the kernel module loop"},
    {"the FUSE server exited", "it may need more memory: see --mem"},
    {"pull the image: import exited", "try again; if it persists, increase --mem"},
};

}  // namespace

Error with_advice(Error error) {
  const auto is_about = [&](const Advice& one) {
    return error.what().find(one.about) != std::string::npos;
  };
  const auto found = std::ranges::find_if(kAdvice, is_about);
  return found == std::end(kAdvice) ? error : std::move(error).hint(found->advice);
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
        if (received->text.view().starts_with(kPullRecord)) {
          if (take_record_) take_record_(received->text.view().substr(sizeof kPullRecord - 1));
          break;
        }
        // A step of pyxis says two lines, and scripts count on it.
        if (style_ == MessageStyle::own) log_.write(LogLevel::info, received->text.view());
        break;
      case TaskMessageKind::warning: log_.write(LogLevel::warning, received->text.view()); break;
      case TaskMessageKind::import_asks:
      case TaskMessageKind::serves:
      case TaskMessageKind::sources:
        if (answer_) SPC_TRY(answer_(*received));
        break;
      case TaskMessageKind::failed: end(); return with_advice(received->failure.error());
      default: end(); return Error(ErrorKind::internal, "unexpected message from the agent");
    }
  }
}

Result<AgentMessage> AgentLine::receive() {
  SPC_TRY(user_source_.wait_for(socket_.get()));
  return receive_from_agent(socket_.get());
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
