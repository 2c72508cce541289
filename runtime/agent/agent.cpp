#include "agent/agent.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "agent/policy.hpp"
#include "agent/privilege.hpp"
#include "agent/system_call.hpp"
#include "base/clock.hpp"
#include "base/socket.hpp"

namespace spc {
namespace {

/// layer-verifier reads it again and accepts only what our converter writes, so that the kernel never meets anything else.
Result<void> publish_verified(const ImageStore& store, const Digest& blob, UniqueFd file) {
  const auto layer = SPC_TRY(store.freeze(std::move(file)));
  const pid_t verifier =
      SPC_TRY(start_helper(SPC_LIBEXECDIR "/layer-verifier", nullptr, store.service_uid(), store.service_gid(), {layer.get()}));
  int status = -1;  // no verdict
  ::waitpid(verifier, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) {
    return Error(ErrorKind::corrupt, "verify layer " + blob.str() + ": not a layer written by the converter");
  }
  if (status != 0) return Error(ErrorKind::unavailable, "verify layer " + blob.str() + ": the verifier failed").hint("see --mem");
  return store.publish(layer.get(), blob);
}

}  // namespace

Agent::Agent(const StepId& step, UniqueFd common, Result<AgentTools> tools)
    : step_(step), common_(std::move(common)), tools_(std::move(tools)), order_{.uid = step.uid, .gid = step.gid} {
  if (!tools_) {
    fail(tools_.error());
  } else if (step.job != 0) {
    const auto steps = open_steps();
    auto socket = steps ? listen_at(steps->get(), step_name(step.uid, step.job, step.step)) : Result(UniqueFd());
    if (socket) steps_socket_ = *std::move(socket);  // without it the step runs, and nobody can join it
  }
}

void Agent::run() {
  for (;;) {
    const int lead = !tasks_.empty() && !answer_ && builder_.pid < 0 ? tasks_.front().socket.get() : -1;
    const bool ready = answer_ && answer_->kind == TaskMessageKind::ready;  // until then those who want to join wait
    pollfd events[] = {{common_.get(), POLLIN, 0},
                       {lead, POLLIN, 0},
                       {import_.socket.get(), POLLIN, 0},
                       {builder_.socket.get(), POLLIN, 0},
                       {holder_.get(), POLLIN, 0},
                       {ready ? steps_socket_.get() : -1, POLLIN, 0},
                       {ready && named_ ? named_->listener.get() : -1, POLLIN, 0}};
    constexpr int kMoment = 10;  // milliseconds
    const int count = ::poll(events, std::size(events), looking_ && !holder_ ? kMoment : -1);
    if (count < 0 && errno != EINTR) return;
    std::erase_if(helpers_, [](pid_t helper) { return ::waitpid(helper, nullptr, WNOHANG) == helper; });
    // One event a turn: each may change what the others mean.
    if (events[3].revents != 0) {
      on_builder();
    } else if (events[2].revents != 0) {
      on_import();
    } else if (events[4].revents != 0) {
      on_holder();
    } else if (events[1].revents != 0) {
      on_lead();
    } else if ((events[5].revents | events[6].revents) != 0) {
      on_peer((events[5].revents != 0 ? events[5] : events[6]).fd);
    } else if ((events[0].revents & POLLIN) != 0) {
      on_join();
    } else if (events[0].revents != 0) {
      return;  // slurmstepd has ended the step
    } else if (count == 0) {
      if (auto looked = look(); !looked) fail(looked.error());
    }
  }
}

void Agent::on_join() {
  TaskMessage message;
  auto descriptors = receive_struct(common_.get(), message);
  if (!descriptors) {
    if (descriptors.error().kind() == ErrorKind::unavailable) ::_exit(0);
    return;
  }
  if (message.kind != TaskMessageKind::join || descriptors->size() != 2) return;
  tasks_.push_back({std::move((*descriptors)[0]), std::move((*descriptors)[1])});
  if (answer_) {
    tell(tasks_.back());
    tasks_.pop_back();
  } else if (tasks_.size() == 1) {
    lead();
  }
}

void Agent::lead() {
  TaskMessage message;
  message.kind = TaskMessageKind::lead;
  message.policy = tools_->policy;
  message.manifest = image_;
  const int passed[] = {tools_->policy_file.get()};
  if (auto sent = send_struct(tasks_.front().socket.get(), message, passed); !sent) fail(sent.error());
}

void Agent::on_lead() {
  TaskMessage message;
  auto descriptors = receive_struct(tasks_.front().socket.get(), message);
  Result<void> done;
  if (!descriptors) {
    done = descriptors.error().kind() == ErrorKind::unavailable
               ? Error(ErrorKind::unavailable, "set up the container: the leader has exited")
               : std::move(descriptors).error();
  } else if (message.kind == TaskMessageKind::source) {
    done = add_source(message, *std::move(descriptors));
  } else if (message.kind == TaskMessageKind::name) {
    done = find(message);
  } else if (message.kind == TaskMessageKind::start) {
    done = start(message, *std::move(descriptors));
  } else if (message.kind == TaskMessageKind::failed) {
    done = message.failure.error();
  } else {
    done = Error(ErrorKind::internal, "set up the container: unexpected message from a task");
  }
  if (!done) fail(done.error());
}

Result<void> Agent::add_source(const TaskMessage& message, std::vector<UniqueFd> descriptors) {
  const bool is_new = (message.source_flags & TaskMessage::source_tmpfs) != 0;
  if (descriptors.size() != (is_new ? 0 : 1)) return Error(ErrorKind::internal, "mount source without descriptor");
  if (order_.sources.size() == kMaxSources) {
    return Error(ErrorKind::invalid, "--container-mounts: more than " + std::to_string(kMaxSources) + " mounts");
  }
  order_.sources.push_back({is_new ? UniqueFd() : std::move(descriptors.front()), message.source_flags, message.size});
  return {};
}

Result<void> Agent::start(const TaskMessage& message, std::vector<UniqueFd> descriptors) {
  if (looking_ || holder_ || began_ != 0) return Error(ErrorKind::internal, "duplicate start request");
  order_.read_only = (message.start_flags & TaskMessage::start_read_only) != 0;
  order_.namespaces = message.namespaces & ~(tools_->id_map ? 0U : own_user);  // root is root anyway
  order_.upper_size = message.upper_size;
  private_ = (message.start_flags & TaskMessage::start_private) != 0;
  if (private_) steps_socket_.reset();  // there is no container of the step
  order_.save = (message.start_flags & TaskMessage::start_save) != 0;
  order_.hooks = (message.start_flags & TaskMessage::start_hooks) != 0;
  began_ = now_us();
  if ((message.start_flags & TaskMessage::start_join) != 0) return join_running();
  if (joined_ || (named_ && !named_->lock)) return Error(ErrorKind::internal, "start of a running container");
  if ((message.start_flags & TaskMessage::start_stored) != 0) {
    if (!named_) return Error(ErrorKind::internal, "no stored container");
    return use(Digest{}, SPC_TRY(named_->open_image()));
  }
  if (descriptors.size() != 2) return Error(ErrorKind::internal, "start request without image");
  if ((message.start_flags & (TaskMessage::start_squashfs | TaskMessage::start_directory)) != 0) {
    order_.image.record = std::move(descriptors[0]);
    if (named_) order_.kept = SPC_TRY(named_->keep(order_.image));
    if ((message.start_flags & TaskMessage::start_squashfs) != 0) {
      order_.image.served.push_back(SPC_TRY(serve(descriptors[1].get(), message.offset)));
      return start_builder();
    }
    // Opened for reading, so the user may read it; O_PATH would prove nothing.
    if ((::fcntl(descriptors[1].get(), F_GETFL) & O_PATH) != 0) return Error(ErrorKind::internal, "image is not open");
    order_.image.directory = std::move(descriptors[1]);
    return start_builder();
  }
  if ((message.start_flags & TaskMessage::start_known) != 0) {
    const bool admitted = image_ != Digest{} && message.manifest == image_;
    auto image = tools_->store.open_image(message.manifest, admitted ? Audience::whoever_import_admitted : Audience::everyone);
    if (image) return use(message.manifest, *std::move(image));
  }
  return start_import(descriptors[0].get(), descriptors[1].get());
}

Result<void> Agent::start_import(int request, int user_source) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const ImageStore& store = tools_->store;
  import_.pid = SPC_TRY(start_helper(SPC_LIBEXECDIR "/import", nullptr, store.service_uid(), store.service_gid(),
                                     {theirs.get(), request, store.directory(), user_source}));
  import_.socket = std::move(ours);
  return {};
}

/// An image of the store.
Result<void> Agent::use(const Digest& manifest, ImageFiles image) {
  image_ = manifest;
  order_.image = std::move(image);
  if (named_) order_.kept = SPC_TRY(named_->keep(order_.image));
  if (tools_->policy.squashfs == PolicyRecord::by_fuse) {
    for (const LayerFile& layer : order_.image.layers) order_.image.served.push_back(SPC_TRY(serve(layer.file.get(), 0)));
    order_.image.layers.clear();
  }
  return start_builder();
}

/// A server for the squashfs in `file`: a process of the user, as for him alone the image is. A job of root takes the service
/// user: what an image says must not be read with any privilege.
Result<ServedLayer> Agent::serve(int file, std::uint64_t offset) {
  auto device = SPC_TRY(own(::open("/dev/fuse", O_RDWR | O_CLOEXEC), "open \"/dev/fuse\""));
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const uid_t uid = order_.uid != 0 ? order_.uid : tools_->store.service_uid();
  const gid_t gid = order_.uid != 0 ? order_.gid : tools_->store.service_gid();
  helpers_.push_back(SPC_TRY(
      start_helper(SPC_LIBEXECDIR "/fuse", std::to_string(offset).c_str(), uid, gid, {device.get(), file, theirs.get()})));
  return ServedLayer{std::move(device), std::move(ours)};
}

void Agent::on_import() {
  ImportMessage message;
  auto descriptors = receive_struct(import_.socket.get(), message);
  Result<void> done;
  if (!descriptors) {
    reap(import_);
    done = Error(ErrorKind::unavailable, "pull the image: import exited unexpectedly")
               .hint("try again; if it persists, increase --mem");
  } else {
    done = handle_import(message, *std::move(descriptors));
  }
  if (!done) fail(done.error());
}

Result<void> Agent::handle_import(const ImportMessage& message, std::vector<UniqueFd> descriptors) {
  switch (message.kind) {
    case ImportMessageKind::progress: tell_all(TaskMessageKind::progress, message.text.view()); return {};
    case ImportMessageKind::warning: tell_all(TaskMessageKind::warning, message.text.view()); return {};
    case ImportMessageKind::new_layer: {
      const auto file = tools_->store.new_layer();
      return answer_import(ImportMessageKind::layer_file, message.digest, file ? nullptr : &file.error(),
                           file ? file->get() : -1);
    }
    case ImportMessageKind::publish: {
      if (descriptors.size() != 1) return Error(ErrorKind::internal, "pull the image: layer without file");
      return publish(message.digest, std::move(descriptors.front()));
    }
    case ImportMessageKind::evict: {
      const auto evicted = tools_->store.evict(message.digest);
      return answer_import(ImportMessageKind::evicted, message.digest, evicted ? nullptr : &evicted.error());
    }
    case ImportMessageKind::done: {
      reap(import_);
      auto image = SPC_TRY(tools_->store.open_image(message.digest, Audience::whoever_import_admitted));
      return use(message.digest, std::move(image));
    }
    case ImportMessageKind::failed: reap(import_); return message.error.error();
    default: return Error(ErrorKind::internal, "pull the image: unexpected message from import");
  }
}

/// Reading a whole layer takes its time, so a fork of the agent sees to it and answers import; several may be on their way.
Result<void> Agent::publish(const Digest& blob, UniqueFd file) {
  const pid_t child = SPC_TRY(fork_child());
  if (child > 0) {
    helpers_.push_back(child);
    return {};
  }
  common_.reset();  // else slurmstepd's end of the step would stay unseen
  const auto done = publish_verified(tools_->store, blob, std::move(file));
  [[maybe_unused]] const auto sent = answer_import(ImportMessageKind::published, blob, done ? nullptr : &done.error());
  ::_exit(0);
}

/// With an error the answer is that import's wish was refused.
Result<void> Agent::answer_import(ImportMessageKind kind, const Digest& digest, const Error* error, int descriptor) {
  ImportMessage answer;
  answer.kind = error != nullptr ? ImportMessageKind::refused : kind;
  answer.digest = digest;
  if (error != nullptr) answer.error = WireError(*error);
  return send_struct(import_.socket.get(), answer, std::span(&descriptor, descriptor >= 0 ? 1 : 0));
}

Result<void> Agent::start_builder() {
  for (MountSource& source : order_.sources) {
    if ((source.flags & TaskMessage::source_squashfs) != 0) source.served = SPC_TRY(serve(source.path.get(), 0));
  }
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto import_us = static_cast<std::uint32_t>(now_us() - began_);
  const pid_t child = SPC_TRY(fork_child((order_.namespaces & own_pid) != 0 ? CLONE_NEWPID : 0));
  if (child > 0) {
    builder_ = {child, std::move(ours)};
    order_.image.served.clear();
    for (MountSource& source : order_.sources) source.served = {};
    return {};
  }

  common_.reset();  // else slurmstepd's end of the step would stay unseen
  TaskMessage report = joined_.value_or(TaskMessage{});
  report.named_state = 0;
  report.manifest = joined_ ? joined_->manifest : image_;
  report.times = {};
  report.times[static_cast<std::size_t>(Phase::import)] = import_us;
  const auto built = build_container(order_, *tools_, tasks_.front(), report);
  report.kind = built ? TaskMessageKind::ready : TaskMessageKind::failed;
  if (!built) {
    report.error = built.error().sys_errno();
    report.failure = WireError(built.error());
  }
  std::vector<int> namespaces;
  if (built) std::ranges::transform(*built, std::back_inserter(namespaces), &UniqueFd::get);
  [[maybe_unused]] const auto sent = send_struct(theirs.get(), report, namespaces);
  if (built && (order_.namespaces & own_pid) != 0) {
    ours.reset();
    stay_as_init(theirs.get(), order_.uid, order_.gid);
  }
  ::_exit(0);
}

void Agent::on_builder() {
  TaskMessage report;
  auto descriptors = receive_struct(builder_.socket.get(), report);
  if (descriptors && report.kind == TaskMessageKind::ready && (report.namespaces & own_pid) != 0) {
    helpers_.push_back(builder_.pid);  // stays until we end
    inits_.push_back(std::move(builder_.socket));
    builder_.pid = -1;
  }
  reap(builder_);
  if (!descriptors) return fail(Error(ErrorKind::unavailable, "set up the container: the builder exited unexpectedly"));
  if (report.error == EOPNOTSUPP && tools_->policy.squashfs == PolicyRecord::automatic) {  // see new_squashfs
    tools_->policy.squashfs = PolicyRecord::by_fuse;
    auto again = use(image_, std::move(order_.image));
    return again ? void() : fail(again.error());
  }
  if (report.kind != TaskMessageKind::ready || descriptors->empty()) return fail(report.failure.error());
  if (!joined_) namespaces_ = *std::move(descriptors);
  answer_all(report);
}

/// What `ready` passes.
std::vector<int> Agent::container() const {
  std::vector<int> passed;
  std::ranges::transform(namespaces_, std::back_inserter(passed), &UniqueFd::get);
  passed.insert(passed.begin() + 1, order_.image.record.get());
  return passed;
}

void Agent::tell(const Task& task) {
  std::vector<int> passed;
  if (answer_->kind == TaskMessageKind::ready) passed = container();
  // A task that has ended needs no answer, and one that was stopped must not stop the others.
  [[maybe_unused]] const auto sent = send_struct(task.socket.get(), *answer_, passed, WhenFull::fail);
}

void Agent::tell_all(TaskMessageKind kind, std::string_view text) {
  TaskMessage message;
  message.kind = kind;
  message.text.set(text);
  for (const Task& task : tasks_) [[maybe_unused]] const auto sent = send_struct(task.socket.get(), message, {}, WhenFull::fail);
}

void Agent::fail(const Error& error) {
  reap(import_);
  reap(builder_);
  named_.reset();  // who waits to join looks elsewhere
  steps_socket_.reset();
  holder_.reset();
  looking_ = false;
  TaskMessage answer;
  answer.kind = TaskMessageKind::failed;
  answer.failure = WireError(error);
  answer_all(answer);
}

/// What is here no longer needed goes; mounts and servers keep the files of the image.
void Agent::answer_all(const TaskMessage& answer) {
  answer_ = answer;
  const bool one = private_ && answer.kind == TaskMessageKind::ready;
  const auto end = one ? tasks_.begin() + 1 : tasks_.end();
  std::for_each(tasks_.begin(), end, [&](const Task& task) { tell(task); });
  tasks_.erase(tasks_.begin(), end);
  order_.sources.clear();
  order_.image = ImageFiles{.record = std::move(order_.image.record)};
  if (!one) return;
  answer_.reset();  // what this task has is nothing to the others
  namespaces_.clear();
  began_ = 0;
  if (!tasks_.empty()) lead();
}

void Agent::reap(Child& child) {
  child.socket.reset();
  if (child.pid < 0) return;
  end_child(child.pid);
  child.pid = -1;
}

}  // namespace spc
