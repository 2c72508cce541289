#include "agent/agent.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"
#include "base/socket.hpp"

namespace spc::agent {
Agent::Agent(const StepId& step, UniqueFd common, Result<AgentTools> tools)
    : step_(step),
      common_(std::move(common)),
      tools_(std::move(tools)),
      order_{.uid = step.uid, .gid = step.gid} {
  if (!tools_) {
    fail(tools_.error());
  } else if (step.job != 0) {
    const auto steps = open_steps();
    auto socket =
        steps ? listen_at(steps->get(), traces_of(step.uid, step.job) + std::to_string(step.step))
              : Result(UniqueFd());
    if (socket)
      steps_socket_ = *std::move(socket);  // without it the step runs, and nobody can join it
  }
}

void Agent::run() {
  for (;;) {
    const int lead =
        !tasks_.empty() && !answer_ && builder_.pid < 0 ? tasks_.front().socket.get() : -1;
    const bool ready =
        answer_ &&
        answer_->kind == TaskMessageKind::ready;  // until then those who want to join wait
    const auto table =
        std::to_array<Event>({{builder_.socket.get(), &Agent::on_builder},
                              {import_.socket.get(), &Agent::on_import},
                              {holder_.get(), &Agent::on_holder},
                              {lead, &Agent::on_lead},
                              {ready ? steps_socket_.get() : -1, &Agent::on_peer},
                              {ready && named_ ? named_->listener.get() : -1, &Agent::on_peer},
                              {common_.get(), &Agent::on_join}});
    std::array<pollfd, table.size()> waiting{};
    std::ranges::transform(table, waiting.begin(), [](const Event& event) {
      return pollfd{event.descriptor, POLLIN, 0};
    });
    // Neither an ended process nor a stopped server says so.
    const int limit = looking_ && !holder_              ? 10
                      : helpers_.size() > inits_.size() ? 1000
                                                        : -1;  // milliseconds
    const int count = ::poll(waiting.data(), waiting.size(), limit);
    if (count < 0 && errno != EINTR) return;
    std::erase_if(helpers_, [](pid_t helper) {
      int status = 0;
      // While a server that its user has stopped has a task's request, the task cannot be killed,
      // and Slurm drains the node.
      return ::waitpid(helper, &status, WNOHANG | WUNTRACED) == helper &&
             !(WIFSTOPPED(status) && ::kill(helper, SIGCONT) == 0);
    });
    const auto due =
        std::ranges::find_if(waiting, [](const pollfd& event) { return event.revents != 0; });
    // One event a turn, the first of the table that is due: each may change what the others mean.
    Result<void> done;
    if (due != waiting.end()) {
      done = (this->*table[static_cast<std::size_t>(due - waiting.begin())].handler)(due->fd);
    } else if (count == 0 && looking_) {
      done = look();
    }
    if (!done) fail(done.error());
  }
}

Result<void> Agent::on_join(int socket) {
  TaskMessage message;
  auto descriptors = receive_struct(socket, message, 2);
  if (!descriptors && descriptors.error().kind() == ErrorKind::unavailable)
    end();  // slurmstepd has ended the step
  if (!descriptors || message.kind != TaskMessageKind::join || descriptors->size() != 2) return {};
  if (!peer_is(descriptors->front().get(), step_.uid))
    return {};  // its groups become the builder's: see act_as_user
  tasks_.push_back({std::move((*descriptors)[0]), std::move((*descriptors)[1])});
  if (answer_) {
    tell(tasks_.back());
    tasks_.pop_back();
  } else if (tasks_.size() == 1) {
    lead();
  }
  return {};
}

void Agent::lead() {
  const TaskMessage message{
      .kind = TaskMessageKind::lead, .manifest = image_, .policy = tools_->policy};
  notes_.reset(::memfd_create("spank-container notes", MFD_CLOEXEC));
  const int passed[] = {tools_->policy_file.get(), notes_.get()};
  auto done = send_struct(tasks_.front().socket.get(), message, passed);
  if (done && order_.uid != 0 && !tools_->id_map) {  // while the leader reads
    auto map = describe_id_map(order_.uid, order_.gid);
    if (map) tools_->id_map = *std::move(map);
    if (!map) done = std::move(map).error();
  }
  if (!done) fail(done.error());
}

Result<void> Agent::on_lead(int socket) {
  TaskMessage message;
  const auto received = receive_struct(socket, message);
  if (!received && received.error().kind() == ErrorKind::unavailable)
    return Error(ErrorKind::unavailable, "set up the container: the leader has exited");
  if (!received) return received.error();
  switch (message.kind) {
    case TaskMessageKind::name: return find(message);
    case TaskMessageKind::start: return start(message);
    case TaskMessageKind::failed: return message.failure.unread();
    default:
      return Error(ErrorKind::internal, "set up the container: unexpected message from a task");
  }
}

/// What `ready` passes.
std::vector<int> Agent::container() const {
  std::vector<int> passed;
  std::ranges::transform(namespaces_, std::back_inserter(passed), &UniqueFd::get);
  passed.insert(passed.begin() + 1, order_.image.record.get());
  return passed;
}

void Agent::tell(const Task& task) {
  const auto passed = answer_->kind == TaskMessageKind::ready ? container() : std::vector<int>();
  // A task that has ended needs no answer, and one that was stopped must not stop the others.
  [[maybe_unused]] const auto sent =
      send_struct(task.socket.get(), *answer_, passed, WhenFull::fail);
}

Result<void> Agent::tell_all(TaskMessageKind kind, std::string_view text) {
  TaskMessage message{.kind = kind};
  message.text.set(text);
  for (const Task& task : tasks_)
    [[maybe_unused]] const auto sent = send_struct(task.socket.get(), message, {}, WhenFull::fail);
  return {};
}

void Agent::fail(const Error& error) {
  reap(import_);
  reap(builder_);
  servers_.clear();
  named_.reset();  // who waits to join looks elsewhere
  steps_socket_.reset();
  holder_.reset();
  looking_ = false;
  answer_all({.kind = TaskMessageKind::failed, .failure = WireError(error)});
}

/// What is here no longer needed goes; mounts and servers keep the files of the image.
void Agent::answer_all(const TaskMessage& answer) {
  answer_ = answer;
  if (tools_) answer_->policy = tools_->policy;
  const bool one = order_.is(TaskMessage::start_private) && answer.kind == TaskMessageKind::ready;
  const auto end = one ? tasks_.begin() + 1 : tasks_.end();
  std::for_each(tasks_.begin(), end, [&](const Task& task) { tell(task); });
  tasks_.erase(tasks_.begin(), end);
  order_.image = ImageFiles{.record = std::move(order_.image.record)};
  if (!one) return;
  answer_.reset();  // what this task has is nothing to the others
  namespaces_.clear();
  began_ = 0;
  if (!tasks_.empty()) lead();
}

/// Nothing of the step stays in its cgroups, nor a server that its user has stopped.
void Agent::end() {
  // What a server has begun to answer it answers: tasks of other steps may wait for it.
  for (const auto& server : servers_)
    [[maybe_unused]] const auto sent =
        send_struct(server.get(), FuseOrder::finish, {}, WhenFull::fail);
  for (int patience = 500;
       const auto& server :
       servers_) {  // milliseconds, of all together: slurmstepd's ends after a second
    for (pollfd gone{server.get(), 0, 0}; patience > 0 && ::poll(&gone, 1, 1) == 0; --patience)
      continue;
  }
  reap(import_);
  reap(builder_);
  for (const pid_t helper : helpers_) ::kill(helper, SIGKILL);
  // One that cannot die, as its user's file system does not answer, keeps the step's cgroup, and
  // not us.
  for (int patience = 500; const pid_t helper : helpers_) {  // milliseconds, of all together
    for (; ::waitpid(helper, nullptr, WNOHANG) == 0 && patience > 0; --patience) ::usleep(1000);
  }
  named_.reset();
  ::_exit(held_ ? 0 : held_.error().sys_errno());
}

/// Kills it; the loop collects it, since nothing here waits for a process that may be unable to
/// die.
void Agent::reap(Child& child) {
  child.socket.reset();
  if (child.pid < 0) return;
  ::kill(child.pid, SIGKILL);
  helpers_.push_back(std::exchange(child.pid, -1));
}

}  // namespace spc::agent
