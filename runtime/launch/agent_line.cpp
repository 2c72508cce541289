#include "launch/agent_line.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/socket.hpp"
#include "image/reference/location.hpp"
#include "launch/host/local_image.hpp"
#include "launch/request/save_path.hpp"

namespace spc {
namespace {

Error agent_has_ended() {
  return Error(ErrorKind::unavailable, "set up the container: the agent exited")
      .hint("try again; see slurmd's log on the node");
}

/// What a task says that can still see the user's files. The text may have a hint of its own, which then comes first.
Error with_advice(const Error& error, const std::string& image) {
  const auto location = ImageLocation::parse(image);
  const bool at_registry = location && location->kind == ImageLocation::Kind::registry;
  const std::string advice = at_registry ? did_you_mean_file(image) : "";
  return advice.empty() ? error : Error(error.kind(), error.message()).hint(advice);
}

}  // namespace

std::optional<std::string> TaskContext::save_path() const {
  return asked.save.empty() || asked.explain ? std::nullopt : save_path_here(asked.save, job);
}

const SitePolicy& KnownSite::get() {
  if (!site_) learn(SitePolicy::read());
  return *site_;
}

void KnownSite::learn(SitePolicy site) {
  site_ = std::move(site);
  site_->override_with(asked_.overrides);
}

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

AgentLine::AgentLine(UniqueFd socket, const TaskContext& task, KnownSite& site)
    : socket_(std::move(socket)), task_(task), site_(site) {}

Result<AgentMessage> AgentLine::await(std::initializer_list<TaskMessageKind> kinds) {
  for (;;) {
    auto received = receive();
    if (received && std::ranges::find(kinds, received->kind) != kinds.end()) return received;
    if (!received) {
      end();
      return received;
    }
    *task_.asked.style = message_style(site_.get());
    switch (received->kind) {
      case TaskMessageKind::progress:
        // A step of pyxis says two lines, and scripts count on it.
        if (*task_.asked.style == MessageStyle::own) task_.log.write(LogLevel::info, received->text.view());
        break;
      case TaskMessageKind::warning: task_.log.write(LogLevel::warning, received->text.view()); break;
      case TaskMessageKind::failed: end(); return failure(*received);
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

Error AgentLine::failure(const AgentMessage& message) {
  const Error error = message.failure.error();
  if (error.what().starts_with("pull image ")) say_import(task_, Event::import_fails);
  return with_advice(error, task_.asked.image);
}

Error AgentLine::fail(const Error& error) {
  if (has_ended_) return error;
  TaskMessage message;
  message.kind = TaskMessageKind::failed;
  message.failure = WireError(error);
  if (!send_struct(socket_.get(), message)) return agent_has_ended();
  return await({}).error();
}

void say_import(const TaskContext& task, Event event) {
  const LaunchRequest& asked = task.asked;
  const auto location = ImageLocation::parse(asked.image);
  if (*asked.style == MessageStyle::own || !location) return;
  if (location->kind == ImageLocation::Kind::path) return;
  const auto tasks = task.job.find("SLURM_STEP_NUM_TASKS");
  const bool one_task = tasks != task.job.end() && tasks->second == "1";
  const bool alone = !asked.batch_script.empty() || one_task;
  if (event == Event::import_begins && !alone) return;
  task.log.write(LogLevel::notice, in_words_of_pyxis(event, asked.image));
}

}  // namespace spc
