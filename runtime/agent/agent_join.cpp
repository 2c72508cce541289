#include <cstring>

#include "agent/agent.hpp"
#include "agent/node/system_call.hpp"
#include "base/socket.hpp"

/// The agent's part in containers that several steps share: finding out how the one with this name
/// stands, joining it, and letting others join.

namespace spc::agent {

/// The container that is meant: its lock is taken, or who has it is asked.
Result<void> Agent::find(const TaskMessage& message) {
  if (named_ || holder_ || began_ != 0) return Error(ErrorKind::internal, "duplicate name");
  if ((message.name_flags & TaskMessage::name_of_step) != 0) {
    std::uint32_t numbers[2];  // job and step
    std::memcpy(numbers, message.container.bytes.data(), sizeof numbers);
    holder_ = connect_to(SPC_TRY(open_steps()).get(),
                         traces_of(step_.uid, numbers[0]) + std::to_string(numbers[1]));
    return holder_ ? Result<void>() : say_found(TaskMessage::named_new);
  }
  const bool of_job = (message.name_flags & TaskMessage::name_of_job) != 0;
  named_.emplace(
      step_.uid, step_.gid,
      (of_job ? std::to_string(step_.job) + "." : "") + message.container.hex().substr(0, 32));
  replace_ = (message.name_flags & TaskMessage::name_replace) != 0;
  looking_ = true;
  return look();
}

Result<void> Agent::look() {
  if (!SPC_TRY(named_->take(replace_, tools_->policy.most_containers))) {
    holder_ = named_->ask();
    return {};
  }
  looking_ = false;
  return say_found(named_->stored() ? TaskMessage::named_stored : TaskMessage::named_new);
}

Result<void> Agent::say_found(std::uint32_t state) {
  TaskMessage message = joined_.value_or(TaskMessage{});
  message.kind = TaskMessageKind::named;
  message.named_state = state;
  const int notes = named_ ? named_->notes.get() : -1;
  return send_struct(tasks_.front().socket.get(), message, std::span(&notes, notes >= 0 ? 1 : 0));
}

/// The container is ready to be joined, or it is no more.
Result<void> Agent::on_holder(int socket) {
  TaskMessage message;
  auto passed = receive_struct(socket, message, kMaxDescriptorsPerMessage);
  holder_.reset();
  const std::size_t shared = message.named_state == TaskMessage::named_running ? 3 : 0;
  if (!passed || message.kind != TaskMessageKind::ready || passed->size() < 3 + shared)
    return looking_ ? Result<void>()
                    : say_found(TaskMessage::named_new);  // of a step, which has ended
  looking_ = false;
  for (; message.servers != 0 && passed->size() > 3 + shared; --message.servers, passed->pop_back())
    SPC_TRY(serve(passed->back().get()));
  if (shared != 0) {
    if (!named_)
      named_.emplace(step_.uid, step_.gid, std::string());  // another step's, and that has a name
    named_->notes = std::move(passed->back()), passed->pop_back();
    named_->listener = std::move(passed->back()), passed->pop_back();
    named_->lock = std::move(passed->back()), passed->pop_back();
  }
  order_.image.record = std::move(passed->at(1));
  passed->erase(passed->begin() + 1);
  namespaces_ = *std::move(passed);
  joined_ = message;
  joined_->asks_host = true;
  joined_->times = {};
  return say_found(TaskMessage::named_running);
}

Result<void> Agent::join_running() {
  if (!joined_) return Error(ErrorKind::internal, "no container to join");
  if (order_.sources_due == 0 && !order_.is(TaskMessage::start_save)) {
    joined_->named_state = 0;
    answer_all(*joined_);
    return {};
  }
  // What is attached there later is not locked: root of that user namespace could take its flags
  // off.
  if ((joined_->namespaces & own_user) != 0)
    return Error(ErrorKind::refused,
                 "add mounts to or save a running container with remapped root: not supported");
  order_.join = namespaces_.front().get();
  return start_builder();
}

/// Everything that the container lives by is handed on, so that it does not matter which of its
/// steps ends first. Of servers, which end with their step, others join the mount.
Result<void> Agent::on_peer(int listener) {
  const UniqueFd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer || !peer_is(peer.get(), 0)) return {};  // another step was faster
  TaskMessage message = *answer_;
  auto passed = container();
  if (named_) {
    message.named_state = TaskMessage::named_running;
    passed.insert(passed.end(), {named_->lock.get(), named_->listener.get(), named_->notes.get()});
  }
  std::vector<UniqueFd> joining;
  for (const UniqueFd& server : servers_) {
    auto ends = socket_pair();
    const int theirs[] = {ends ? ends->second.get() : -1};
    const bool fits = ends && passed.size() < kMaxDescriptorsPerMessage;
    if (!fits || !send_struct(server.get(), FuseOrder::lend, theirs, WhenFull::fail))
      continue;  // it will end with us
    passed.push_back(joining.emplace_back(std::move(ends->first)).get());
  }
  message.servers = static_cast<std::uint32_t>(joining.size());
  [[maybe_unused]] const auto sent = send_struct(peer.get(), message, passed, WhenFull::fail);
  return {};
}

}  // namespace spc::agent
