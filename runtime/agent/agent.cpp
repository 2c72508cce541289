// The event loop of a step's agent, and its protocol with leader, other agents and `import`.

#include "agent/agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <iterator>

#include "agent/privilege.hpp"
#include "base/clock.hpp"
#include "base/socket.hpp"
#include "protocol/image_record.hpp"
#include "protocol/layer.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {

// --- agent ---

Agent::Agent(const StepId& step, UniqueFd common, Result<AgentTools> tools)
    : step_(step),
      common_(std::move(common)),
      tools_(std::move(tools)),
      order_{{.uid = step.uid, .gid = step.gid, .keeper = kAgentKeeper}} {
  if (!tools_) {
    fail(tools_.error());
  } else if (step.job != 0) {
    const auto steps = open_steps();
    auto socket =
        steps ? listen_at(steps->get(), traces_of(step.uid, step.job) + std::to_string(step.step))
              : Result(UniqueFd());
    // Without it the step runs, but cannot be joined.
    if (socket) steps_socket_ = *std::move(socket);
  }
}

void Agent::run() {
  for (;;) {
    const int lead =
        !tasks_.empty() && !answer_ && builder_.pid < 0 ? tasks_.front().socket.get() : -1;
    const bool ready =
        answer_ && answer_->kind == TaskMessageKind::ready;  // until then joining agents wait
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
    // An ended process and a stopped server raise no event.
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
    // Handle one event per turn, the first of the table that is due: each may change the meaning of
    // the others.
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
  const auto received = receive_struct(socket, message);
  if (!received && received.error().kind() == ErrorKind::unavailable) end();  // of the step
  if (!received || message.kind != TaskMessageKind::join) return {};
  auto line = socket_pair();
  const int passed[] = {line ? line->second.get() : -1};
  if (!send_struct(socket, char{}, passed)) end();  // without it the task would wait forever
  tasks_.push_back({std::move(line->first), UniqueFd()});
  if (answer_) {
    tell(tasks_.back());
    tasks_.pop_back();
  }
  return !answer_ && tasks_.size() == 1 ? lead() : Result<void>();
}

Result<void> Agent::lead() {
  const TaskMessage message{
      .kind = TaskMessageKind::lead, .manifest = image_, .policy = tools_->policy};
  notes_.reset(::memfd_create("spank-container notes", MFD_CLOEXEC));
  auto [mounts, end_for_task] = SPC_TRY(socket_pair());
  const int passed[] = {tools_->policy_file.get(), notes_.get(), end_for_task.get()};
  SPC_TRY(send_struct(tasks_.front().socket.get(), message, passed));
  tasks_.front().mounts = std::move(mounts);
  if (order_.uid != 0 && !tools_->id_map)  // while the leader reads
    tools_->id_map = SPC_TRY(describe_id_map(order_.uid, order_.gid));
  return {};
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
    default: return Error(ErrorKind::internal, "set up the container: unexpected message");
  }
}

std::vector<int> Agent::numbers_of(const std::vector<UniqueFd>& descriptors) {
  std::vector<int> numbers;
  std::ranges::transform(descriptors, std::back_inserter(numbers), &UniqueFd::get);
  return numbers;
}

void Agent::tell(const Task& task) {
  const bool is_ready = answer_->kind == TaskMessageKind::ready;
  const auto passed = is_ready ? numbers_of(namespaces_) : std::vector<int>();
  // A task that has ended needs no answer. A stopped task must not delay the others.
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
  named_.reset();  // joining agents look elsewhere
  steps_socket_.reset();
  holder_.reset();
  looking_ = false;
  answer_all({.kind = TaskMessageKind::failed, .failure = WireError(error)});
}

/// Drop descriptors that are no longer needed. Mounts and servers keep the files of the image open.
void Agent::answer_all(const TaskMessage& answer) {
  answer_ = answer;
  if (tools_) answer_->policy = tools_->policy;
  const bool one = order_.is(TaskMessage::start_private) && answer.kind == TaskMessageKind::ready;
  const auto end = one ? tasks_.begin() + 1 : tasks_.end();
  std::for_each(tasks_.begin(), end, [&](const Task& task) { tell(task); });
  tasks_.erase(tasks_.begin(), end);
  order_.image = {};
  if (!one) return;
  answer_.reset();  // this task's answer is its own, not the container's
  namespaces_.clear();
  began_ = 0;
  const auto led = tasks_.empty() ? Result<void>() : lead();
  if (!led) fail(led.error());
}

/// No process of the step remains in its cgroups, not even a server that its user has stopped.
void Agent::end() {
  // Let servers finish requests that they have begun: tasks of other steps may wait for them.
  for (const auto& server : servers_)
    [[maybe_unused]] const auto sent =
        send_struct(server.get(), FuseOrder::finish, {}, WhenFull::fail);
  // Milliseconds, for all together: slurmstepd's wait ends after a second.
  for (int patience = 500; const auto& server : servers_) {
    for (pollfd gone{server.get(), 0, 0}; patience > 0 && ::poll(&gone, 1, 1) == 0;) --patience;
  }
  reap(import_);
  reap(builder_);
  for (const pid_t helper : helpers_) ::kill(helper, SIGKILL);
  // A helper that cannot die, because its user's file system does not answer, may block the step's
  // cgroup, but not the agent.
  for (int patience = 500; const pid_t helper : helpers_) {  // milliseconds, for all together
    for (; ::waitpid(helper, nullptr, WNOHANG) == 0 && patience > 0; --patience) ::usleep(1000);
  }
  named_.reset();
  const std::string socket = traces_of(step_.uid, step_.job) + std::to_string(step_.step);
  if (const auto steps = open_steps()) ::unlinkat(steps->get(), socket.c_str(), 0);
  ::_exit(held_ ? 0 : held_.error().sys_errno());
}

/// Kills the child. The event loop collects it, because the process may be unable to die and must
/// not block the agent.
void Agent::reap(Child& child) {
  child.socket.reset();
  if (child.pid < 0) return;
  ::kill(child.pid, SIGKILL);
  helpers_.push_back(std::exchange(child.pid, -1));
}

// --- agent start ---

/// From the leader's request to a ready container: image, servers and builder.

Result<void> Agent::start(const TaskMessage& message) {
  if (looking_ || holder_ || began_ != 0 || message.index > kMaxSources ||
      message.servers > kMaxSources)
    return Error(ErrorKind::internal, "unexpected start request");
  order_.flags = message.start_flags;
  order_.sources_due = message.index;
  order_.files_due = message.servers;
  // Jobs of root are root without a user namespace.
  order_.namespaces = message.namespaces & ~(tools_->id_map ? 0U : own_user);
  order_.upper_size = message.upper_size;
  image_name_ = message.image_name;
  if (order_.is(TaskMessage::start_private)) steps_socket_.reset();  // the step has no container
  began_ = now_us();
  if (order_.is(TaskMessage::start_join)) return join_running();
  if (joined_ || (named_ && !named_->lock))
    return Error(ErrorKind::internal, "start of a running container");
  // Without any layer of the store.
  if (order_.is(TaskMessage::start_squashfs | TaskMessage::start_directory)) {
    if (named_) order_.kept = SPC_TRY(named_->keep({}));
    order_.image.record =
        SPC_TRY(own(::open("/dev/null", O_RDONLY | O_CLOEXEC), "open an empty record"));
    return start_builder();
  }
  if (order_.is(TaskMessage::start_stored) && named_)
    return use(Digest{}, SPC_TRY(named_->open_image()));
  if (order_.is(TaskMessage::start_known)) {
    const bool admitted = image_ != Digest{} && message.manifest == image_;
    auto image = tools_->store.open_image(
        message.manifest, admitted ? Audience::whoever_import_admitted : Audience::everyone);
    if (image && !image->layers.empty()) return use(message.manifest, *std::move(image));
  }
  return start_import();
}

/// Uses an image of the store.
Result<void> Agent::use(const Digest& manifest, ImageFiles image) {
  image_ = manifest;
  order_.image = std::move(image);
  if (!order_.image.layers.empty()) order_.served.clear(), servers_.clear();
  if (order_.is(TaskMessage::start_pull)) return tell_all(TaskMessageKind::pulled, {});
  if (named_) order_.kept = SPC_TRY(named_->keep(order_.image));
  const bool by_fuse =
      tools_->policy.squashfs == PolicyRecord::by_fuse_for_users && order_.uid != 0;
  if (by_fuse || order_.image.layers.size() > tools_->policy.most_layers) {
    for (LayerFile& layer : order_.image.layers) to_serve_.push_back(std::move(layer.file));
    order_.image.layers.clear();
  }
  SPC_TRY(serve(std::exchange(to_serve_, {})));
  return start_builder();
}

/// Starts a server for squashfs files, which become the next of the order. The server is a process
/// of the user, because the image is private to the user. For a job of root it runs as the service
/// user, so that no image data is read with privilege. It still reports every file as owned by root
/// (protocol/fuse.hpp). A file may also be a socket: to the leader, to import, or to a server in
/// another step that this one joins.
Result<void> Agent::serve(std::span<const UniqueFd> files) {
  const uid_t uid = order_.uid != 0 ? order_.uid : tools_->store.service_uid();
  const gid_t gid = order_.uid != 0 ? order_.gid : tools_->store.service_gid();
  std::vector<UniqueFd> statuses;
  std::vector<int> passed;
  for (const UniqueFd& file : files) {
    auto device = SPC_TRY(own(::open("/dev/fuse", O_RDWR | O_CLOEXEC), "open \"/dev/fuse\""));
    auto [ours, theirs] = SPC_TRY(socket_pair());
    passed.insert(passed.end(), {device.get(), file.get(), theirs.get()});
    order_.served.push_back({std::move(device), ours.get()});
    servers_.push_back(std::move(ours));
    statuses.push_back(std::move(theirs));
  }
  const char* const offset = order_.uid != 0 ? "0" : "0r";
  if (!files.empty()) helpers_.push_back(SPC_TRY(start_helper("fuse", offset, uid, gid, passed)));
  return {};
}

Result<void> Agent::start_builder() {
  const int leader = tasks_.front().socket.get();
  order_.files_mounted = order_.served.size() + (order_.is(TaskMessage::start_squashfs) ? 1 : 0);
  for (std::uint32_t number = 0; number < order_.files_due; ++number) {
    const auto [leads, servers] = SPC_TRY(socket_pair());
    SPC_TRY(serve({&servers, 1}));
    const int passed[] = {leads.get()};
    SPC_TRY(send_struct(leader, TaskMessage{.kind = TaskMessageKind::serves, .index = number},
                        passed, WhenFull::fail));
  }
  // Send before the fork: the leader answers meanwhile.
  SPC_TRY(send_struct(leader, TaskMessage{.kind = TaskMessageKind::sources}, {}, WhenFull::fail));
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto import_us = static_cast<std::uint32_t>(now_us() - began_);
  const pid_t child = SPC_TRY(fork_child((order_.namespaces & own_pid) != 0 ? CLONE_NEWPID : 0));
  if (child > 0) {
    builder_ = {child, std::move(ours)};
    order_.served.clear();
    return {};
  }

  common_.reset();  // otherwise slurmstepd's end of the step would go unnoticed
  TaskMessage report = joined_.value_or(TaskMessage{});
  report.named_state = 0;
  if (!joined_)
    report.manifest = image_, report.layers_served = std::uint32_t(order_.files_mounted);
  report.times[static_cast<std::size_t>(Phase::import)] = import_us;
  const auto built = build_container(order_, *tools_, tasks_.front(), report);
  report.kind = built ? TaskMessageKind::ready : TaskMessageKind::failed;
  if (!built) report.failure = WireError(built.error());
  auto namespaces = built ? numbers_of(*built) : std::vector<int>();
  if (built && !joined_)
    namespaces.insert(namespaces.begin() + 1, {order_.image.record.get(), notes_.get()});
  ::setpriority(PRIO_PROCESS, 0, 19);  // waiting tasks run first
  [[maybe_unused]] const auto sent = send_struct(theirs.get(), report, namespaces);
  if (built && (order_.namespaces & own_pid) != 0) {
    ours.reset();
    stay_as_init(theirs.get(), order_.uid, order_.gid);
  }
  ::_exit(0);
}

Result<void> Agent::on_builder(int socket) {
  TaskMessage report;
  auto descriptors = receive_struct(socket, report, kMaxDescriptorsPerMessage);
  if (descriptors && report.kind == TaskMessageKind::ready && (report.namespaces & own_pid) != 0) {
    helpers_.push_back(builder_.pid);  // runs until the agent ends
    inits_.push_back(std::move(builder_.socket));
    builder_.pid = -1;
  }
  if (!descriptors)
    return Error(ErrorKind::unavailable, "set up the container: the builder exited unexpectedly");
  const int why = report.failure.unread().sys_errno();  // see new_layer
  if ((why == EOPNOTSUPP || why == ENODEV) && tools_->policy.squashfs != PolicyRecord::by_kernel &&
      !order_.image.layers.empty()) {
    tools_->policy.most_layers = 0;
    reap(builder_);
    return use(image_, std::move(order_.image));
  }
  if (report.kind != TaskMessageKind::ready) return report.failure.unread();
  if (!joined_) namespaces_ = *std::move(descriptors);
  if (named_) SPC_TRY(named_->settle());
  layers_ = std::move(order_.image.layers);
  answer_all(report);
  reap(builder_);  // last: its exit takes longer than its answer
  // Without held layers the job's next step only takes longer. slurmd's log has the error. Images
  // of many layers share few slots: a job holds at most most_layers * (1 + 1/2 + ... + 1/8).
  const auto places =
      std::min<std::size_t>(8, layers_.empty() ? 0 : tools_->policy.most_layers / layers_.size());
  if (step_.job != 0 && places > 0)
    held_ = hold_layers(
        layers_, tools_->layer_owner(order_.uid, order_.gid),
        traces_of(step_.uid, step_.job) + std::to_string(image_.bytes[0] % places) + "h");
  return {};
}

// --- agent join ---

/// The agent's part in containers that several steps share: finds the state of the named container,
/// joins it, and lets other agents join.

/// Acquires the lock of the requested container, or asks the agent that has it.
Result<void> Agent::find(const TaskMessage& message) {
  if (named_ || holder_ || began_ != 0) return Error(ErrorKind::internal, "duplicate name");
  if ((message.name_flags & TaskMessage::name_of_step) != 0) {
    const auto numbers = std::bit_cast<std::array<std::uint32_t, 8>>(message.container);
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

/// Handles the holder's answer: the container is ready to be joined, or has ended.
Result<void> Agent::on_holder(int socket) {
  TaskMessage message;
  auto passed = receive_struct(socket, message, kMaxDescriptorsPerMessage);
  holder_.reset();
  const std::size_t shared = message.named_state == TaskMessage::named_running ? 3 : 0;
  if (!passed || message.kind != TaskMessageKind::ready ||
      passed->size() < 3 + shared + message.servers)
    // The answer of a step that has ended.
    return looking_ ? Result<void>() : say_found(TaskMessage::named_new);
  looking_ = false;
  const auto lent = std::span(*passed).last(message.servers);
  const auto layers = std::min(message.layers_served, message.servers);
  SPC_TRY(serve(lent.first(layers)));
  for (const UniqueFd& file : lent.subspan(layers)) SPC_TRY(serve({&file, 1}));
  order_.served.clear();  // the container has its mounts
  passed->resize(passed->size() - lent.size());
  if (shared != 0) {
    // Another step's container, which has a name.
    if (!named_) named_.emplace(step_.uid, step_.gid, std::string());
    for (UniqueFd* shared_one : {&named_->notes, &named_->listener, &named_->lock})
      *shared_one = std::move(passed->back()), passed->pop_back();
  }
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
  // Mounts attached there later are not locked: root of that user namespace could clear their
  // flags.
  if ((joined_->namespaces & own_user) != 0)
    return Error(ErrorKind::refused,
                 "add mounts to or save a running container with remapped root: not supported")
        .hint("request it in the step that starts the container");
  order_.join = namespaces_.front().get();
  order_.image.record.reset(::fcntl(namespaces_.at(1).get(), F_DUPFD_CLOEXEC, 0));
  return start_builder();
}

/// Passes on all descriptors that the container depends on, so that its steps may end in any order.
/// Servers end with their step, so joining steps share the mount instead.
Result<void> Agent::on_peer(int listener) {
  const UniqueFd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer || !peer_is_root(peer.get())) return {};  // another step was faster
  TaskMessage message = *answer_;
  auto passed = numbers_of(namespaces_);
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
      continue;  // it ends with this agent
    passed.push_back(joining.emplace_back(std::move(ends->first)).get());
  }
  message.servers = static_cast<std::uint32_t>(joining.size());
  [[maybe_unused]] const auto sent = send_struct(peer.get(), message, passed, WhenFull::fail);
  return {};
}

// --- agent import ---

/// The agent's part in pulling an image: starts `import`, and a publisher for each object that
/// import requests to publish.

namespace {

/// Answers import's request; an Error means that it is refused. `when_full`: a publisher may wait
/// for import, the agent may not.
Result<void> answer(int import, ImportMessageKind kind, const Digest& digest,
                    const Result<void>& done, std::span<const int> passed = {},
                    WhenFull when_full = WhenFull::wait) {
  const ImportMessage message{.kind = done ? kind : ImportMessageKind::refused,
                              .digest = digest,
                              .error = done ? WireError() : WireError(done.error())};
  return send_struct(import, message, passed, when_full);
}

/// Starts the sealed writer of a layer and passes its other ends to import.
Result<pid_t> start_writer(const ImageStore& store, int import, const std::string& order,
                           int file) {
  int pipe[2];
  SPC_TRY(check(::pipe2(pipe, O_CLOEXEC), "create a pipe"));
  const UniqueFd input(pipe[0]), input_end(pipe[1]);
  const auto [report, report_end] = SPC_TRY(socket_pair());
  const auto [below, below_end] = SPC_TRY(socket_pair());
  ::fcntl(input_end.get(), F_SETPIPE_SZ, kLayerPipe);
  const pid_t writer =
      SPC_TRY(start_helper("layer-writer", order.c_str(), store.service_uid(), store.service_gid(),
                           {file, report.get(), below.get(), input.get()}));
  const int ends[] = {input_end.get(), report_end.get(), below_end.get()};
  SPC_TRY(answer(import, ImportMessageKind::writer, {}, {}, ends));
  return writer;
}

/// Writes the file back and publishes what layer-verifier accepts, because import may be
/// compromised. Layers must be in the form that our converter writes, so that the kernel never
/// reads anything else. Records must follow from the manifest that names them.
Result<void> publish_verified(const ImageStore& store, const Digest& name, int file,
                              bool is_record = false) {
  const pid_t verifier =
      SPC_TRY(start_helper("layer-verifier", is_record ? name.str().c_str() : nullptr,
                           store.service_uid(), store.service_gid(), {file}));
  int status = -1;  // no verdict
  ::waitpid(verifier, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
    return Error(ErrorKind::corrupt, is_record ? "its record does not match its manifest"
                                               : "not a layer written by the converter");
  if (status != 0) return Error(ErrorKind::unavailable, "the verifier failed").hint("see --mem");
  // Otherwise it could be empty after a power failure.
  SPC_TRY(check(::fdatasync(file), "write it to disk"));
  return is_record ? store.put(store_layout::record_path(name), file)
                   : store.publish(file, store_layout::layer_path(name));
}

/// A publisher; runs until import closes the socket. Only the sealed writer has the file as well,
/// and it has ended when the file is read.
Result<void> make_layer(const ImageStore& store, int import, const std::string& order) {
  UniqueFd file = SPC_TRY(store.new_object());
  const pid_t writer = SPC_TRY(start_writer(store, import, order, file.get()));
  ImportMessage message;
  SPC_TRY(receive_struct(import, message));
  int status = 0;
  ::waitpid(writer, &status, 0);
  const auto layer = SPC_TRY(store.freeze(std::move(file)));
  const int passed[] = {layer.get()};
  SPC_TRY(send_struct(
      import,
      ImportMessage{.kind = ImportMessageKind::ended, .done = static_cast<unsigned>(status)},
      passed));
  SPC_TRY(receive_struct(import, message));
  return answer(import, ImportMessageKind::published, message.digest,
                publish_verified(store, message.digest, layer.get()));
}

}  // namespace

Result<void> Agent::start_import() {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto [leads, imports] = SPC_TRY(socket_pair());
  const ImageStore& store = tools_->store;
  import_.pid = SPC_TRY(start_helper("import", nullptr, store.service_uid(), store.service_gid(),
                                     {theirs.get(), imports.get(), store.directory()}));
  import_.socket = std::move(ours);
  const int passed[] = {leads.get()};
  return send_struct(tasks_.front().socket.get(), TaskMessage{.kind = TaskMessageKind::import_asks},
                     passed, WhenFull::fail);
}

Result<void> Agent::on_import(int socket) {
  ImportMessage message;
  if (!receive_struct(socket, message))
    return Error(ErrorKind::unavailable, "pull the image: import exited unexpectedly")
        .hint("try again; if it persists, increase --mem");
  if (helpers_.size() > kMostHelpers)
    return Error(ErrorKind::internal, "pull the image: too many files at a time");
  switch (message.kind) {
    case ImportMessageKind::progress:
      return tell_all(TaskMessageKind::progress, message.text.view());
    case ImportMessageKind::warning: return tell_all(TaskMessageKind::warning, message.text.view());
    case ImportMessageKind::object:
    case ImportMessageKind::serve: return start_for_import(socket, message);
    case ImportMessageKind::evict: {
      const auto done = message.digest == Digest{} ? remove_traces("", AT_REMOVEDIR)
                                                   : tools_->store.evict(message.digest);
      return answer(socket, ImportMessageKind::obeyed, message.digest, done, {}, WhenFull::fail);
    }
    case ImportMessageKind::done: {
      auto image = tools_->store.open_image(message.digest, Audience::whoever_import_admitted);
      reap(import_);
      return image ? use(message.digest, *std::move(image)) : Result<void>(image.error());
    }
    case ImportMessageKind::failed: return message.error.unread();
    default: return Error(ErrorKind::internal, "pull the image: unexpected message from import");
  }
}

/// Writing and verifying take time, so a fork of the agent handles each object. Several may be in
/// progress.
Result<void> Agent::start_for_import(int socket, const ImportMessage& message) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const bool serves = message.kind == ImportMessageKind::serve;
  const pid_t child = serves ? -1 : SPC_TRY(fork_child());
  if (serves) to_serve_.push_back(std::move(ours));
  if (child == 0) {
    common_.reset();  // otherwise slurmstepd's end of the step would go unnoticed
    theirs.reset();
    const std::string order = message.text.str();
    const auto done =
        order.empty() ? put_object(ours.get()) : make_layer(tools_->store, ours.get(), order);
    ::_exit(done || answer(ours.get(), ImportMessageKind::refused, {}, done) ? 0 : 1);
  }
  if (child > 0) helpers_.push_back(child);
  const int passed[] = {theirs.get()};
  SPC_TRY(answer(socket, ImportMessageKind::object_socket, {}, {}, passed, WhenFull::fail));
  return to_serve_.size() == message.total ? serve(std::exchange(to_serve_, {})) : Result<void>();
}

/// Only import interprets names. It may write the name that the leader has asked for, grants to
/// this user, and records that match their manifest.
Result<void> Agent::put_object(int import) const {
  ImportMessage message;
  SPC_TRY(receive_struct(import, message));
  UniqueFd file = SPC_TRY(tools_->store.new_object());
  if (message.total > ImageRecordHeader::kMaxBytes)
    return Error(ErrorKind::invalid, "write into the store: it is too large");
  for (std::uint64_t left = message.total; left > 0;) {
    ImportBytes piece;
    SPC_TRY(receive_struct(import, piece));
    const auto size = std::min<std::uint64_t>(left, sizeof piece.bytes);
    if (::write(file.get(), piece.bytes, size) != static_cast<ssize_t>(size))
      return Error::from_errno(errno, "write into the store");
    left -= size;
  }
  const bool name = message.kind == ImportMessageKind::name,
             grant = message.kind == ImportMessageKind::grant;
  const bool foreign =
      (name && message.digest != image_name_) || (grant && message.done != step_.uid);
  if (foreign && message.total > 0)
    return Error(ErrorKind::refused, "write into the store: it is not about this image");
  const auto path = name    ? store_layout::name_path(message.digest)
                    : grant ? store_layout::grant_path(message.done, message.digest)
                            : store_layout::record_path(message.digest);
  const auto object =
      message.total > 0 ? SPC_TRY(tools_->store.freeze(std::move(file))) : UniqueFd();
  const auto done = name || grant || !object
                        ? tools_->store.put(path, object.get())
                        : publish_verified(tools_->store, message.digest, object.get(), true);
  return answer(import, ImportMessageKind::obeyed, message.digest, done);
}

}  // namespace spc::agent
