#include "container/agent/agent.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/socket.hpp"
#include "container/agent/policy.hpp"
#include "container/agent/privilege.hpp"

namespace spc {
namespace {

template <typename Message>
void set_text(Message& message, std::string_view text) {
  const std::size_t size = std::min(text.size(), sizeof message.text - 1);
  std::memcpy(message.text, text.data(), size);
  message.text[size] = '\0';
}

}  // namespace

Agent::Agent(uid_t uid, gid_t gid, UniqueFd common, Result<AgentTools> tools)
    : uid_(uid), gid_(gid), common_(std::move(common)), tools_(std::move(tools)) {
  if (!tools_) fail(tools_.error());
}

void Agent::run() {
  for (;;) {
    const int lead = !tasks_.empty() && !answer_ && builder_.pid < 0 ? tasks_.front().socket.get() : -1;
    pollfd events[] = {
        {common_.get(), POLLIN, 0}, {lead, POLLIN, 0}, {import_.socket.get(), POLLIN, 0}, {builder_.socket.get(), POLLIN, 0}};
    if (::poll(events, std::size(events), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    // One event a turn: each may change what the others mean.
    if (events[3].revents != 0) {
      on_builder();
    } else if (events[2].revents != 0) {
      on_import();
    } else if (events[1].revents != 0) {
      on_lead();
    } else if ((events[0].revents & POLLIN) != 0) {
      on_join();
    } else if (events[0].revents != 0) {
      return;  // slurmstepd has ended the step
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
    message = TaskMessage{};
    message.kind = TaskMessageKind::lead;
    message.policy = tools_->policy;
    if (auto sent = send_struct(tasks_.front().socket.get(), message); !sent) fail(sent.error());
  }
}

void Agent::on_lead() {
  TaskMessage message;
  auto descriptors = receive_struct(tasks_.front().socket.get(), message);
  Result<void> done;
  if (!descriptors) {
    done = descriptors.error().kind() == ErrorKind::unavailable
               ? Error(ErrorKind::unavailable, "prepare the container: the task that prepared it has ended")
               : std::move(descriptors).error();
  } else if (message.kind == TaskMessageKind::source) {
    done = add_source(message, *std::move(descriptors));
  } else if (message.kind == TaskMessageKind::start) {
    done = start(message, *std::move(descriptors));
  } else if (message.kind == TaskMessageKind::failed) {
    message.text[sizeof message.text - 1] = '\0';
    done = Error(ErrorKind::invalid, message.text);
  } else {
    done = Error(ErrorKind::internal, "prepare the container: unexpected message of a task");
  }
  if (!done) fail(done.error());
}

Result<void> Agent::add_source(const TaskMessage& message, std::vector<UniqueFd> descriptors) {
  if (descriptors.size() != 1) return Error(ErrorKind::internal, "a mount source without its descriptor");
  if (sources_.size() == kMaxSources) {
    return Error(ErrorKind::invalid, "--container-mounts: more than " + std::to_string(kMaxSources) + " mounts");
  }
  sources_.push_back({std::move(descriptors.front()), message.source_flags});
  return {};
}

Result<void> Agent::start(const TaskMessage& message, std::vector<UniqueFd> descriptors) {
  if (descriptors.size() != 2 || import_started_ != 0) return Error(ErrorKind::internal, "a start without its request");
  read_only_ = (message.start_flags & TaskMessage::start_read_only) != 0;
  import_started_ = now_us();
  if ((message.start_flags & TaskMessage::start_known) != 0) {
    auto image = tools_->store.open_image(message.manifest, Audience::everyone);
    if (image) return start_builder(*std::move(image));
  }
  return start_import(descriptors[0].get(), descriptors[1].get());
}

Result<void> Agent::start_import(int request, int user_source) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  import_.pid = SPC_TRY(start_helper(SPC_LIBEXECDIR "/import", nullptr, tools_->store.service_uid(), tools_->store.service_gid(),
                                     {theirs.get(), request, tools_->store.directory(), user_source}));
  import_.socket = std::move(ours);
  return {};
}

void Agent::on_import() {
  ImportMessage message;
  auto descriptors = receive_struct(import_.socket.get(), message);
  Result<void> done;
  if (!descriptors) {
    reap(import_);
    done = Error(ErrorKind::unavailable, "fetch the image: the import ended unexpectedly")
               .hint("try again; if it happens again, see --mem");
  } else {
    message.text[sizeof message.text - 1] = '\0';
    done = answer_import(message, *std::move(descriptors));
  }
  if (!done) fail(done.error());
}

Result<void> Agent::answer_import(const ImportMessage& message, std::vector<UniqueFd> descriptors) {
  ImportMessage answer;
  const auto refuse = [&](const Error& error) {
    answer.kind = ImportMessageKind::refused;
    answer.error_kind = static_cast<std::uint32_t>(error.kind());
    set_text(answer, error.message());
    return send_struct(import_.socket.get(), answer);
  };
  switch (message.kind) {
    case ImportMessageKind::progress: tell_all(TaskMessageKind::progress, message.text); return {};
    case ImportMessageKind::warning: tell_all(TaskMessageKind::warning, message.text); return {};
    case ImportMessageKind::new_layer: {
      auto file = tools_->store.new_layer();
      if (!file) return refuse(file.error());
      answer.kind = ImportMessageKind::layer_file;
      answer.digest = message.digest;
      const int passed[] = {file->get()};
      return send_struct(import_.socket.get(), answer, passed);
    }
    case ImportMessageKind::publish: {
      if (descriptors.size() != 1) return Error(ErrorKind::internal, "fetch the image: a layer without its file");
      auto published = tools_->store.publish(std::move(descriptors.front()), message.digest);
      if (!published) return refuse(published.error());
      answer.kind = ImportMessageKind::published;
      answer.digest = message.digest;
      return send_struct(import_.socket.get(), answer);
    }
    case ImportMessageKind::done: {
      reap(import_);
      auto image = SPC_TRY(tools_->store.open_image(message.digest, Audience::whoever_import_admitted));
      return start_builder(std::move(image));
    }
    case ImportMessageKind::failed: reap(import_); return Error(ErrorKind::unavailable, message.text);
    default: return Error(ErrorKind::internal, "fetch the image: unexpected message of the import");
  }
}

Result<void> Agent::start_builder(StoredImage image) {
  image_ = std::move(image);
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const pid_t parent = ::getpid();
  const auto import_us = static_cast<std::uint32_t>(now_us() - import_started_);
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "fork the builder");
  if (child > 0) {
    builder_ = {child, std::move(ours)};
    return {};
  }

  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  common_.reset();  // else slurmstepd's end of the step would stay unseen
  const BuildOrder order{.uid = uid_,
                         .gid = gid_,
                         .task_mount_namespace = tasks_.front().mount_namespace.get(),
                         .id_map = tools_->id_map.get(),
                         .loop_table = tools_->loop_table.get(),
                         .lead = tasks_.front().socket.get(),
                         .image = &*image_,
                         .sources = &sources_,
                         .upper_size = upper_size(tools_->policy),
                         .read_only = read_only_};
  auto built = build_container(order);
  TaskMessage report;
  report.kind = built ? TaskMessageKind::ready : TaskMessageKind::failed;
  int mount_namespace = -1;
  if (built) {
    mount_namespace = built->mount_namespace.get();
    report.times = built->times;
    report.times[static_cast<std::size_t>(Phase::import)] = import_us;
    report.layers = static_cast<std::uint32_t>(image_->layers.size());
    report.layers_shared = built->layers_shared;
    std::memcpy(report.text, built->for_other_tasks, sizeof report.text);
  } else {
    set_text(report, built.error().message());
  }
  [[maybe_unused]] const auto sent = send_struct(theirs.get(), report, std::span(&mount_namespace, built ? 1 : 0));
  ::_exit(0);
}

void Agent::on_builder() {
  TaskMessage report;
  auto descriptors = receive_struct(builder_.socket.get(), report);
  reap(builder_);
  report.text[sizeof report.text - 1] = '\0';
  if (!descriptors) return fail(Error(ErrorKind::unavailable, "prepare the container: the builder ended unexpectedly"));
  if (report.kind != TaskMessageKind::ready) return fail(Error(ErrorKind::system, report.text));
  if (descriptors->size() != 1) return fail(Error(ErrorKind::internal, "prepare the container: no namespace"));

  mount_namespace_ = std::move(descriptors->front());
  answer_ = report;
  image_->layers.clear();  // the mounts keep the files
  sources_.clear();
  for (const Task& task : tasks_) tell(task);
  tasks_.clear();
}

void Agent::tell(const Task& task) {
  const int passed[] = {mount_namespace_.get(), image_ ? image_->record.get() : -1};
  const bool ready = answer_->kind == TaskMessageKind::ready;
  // A task that has ended needs no answer, and one that was stopped must not stop the others.
  [[maybe_unused]] const auto sent =
      send_struct(task.socket.get(), *answer_, ready ? std::span<const int>(passed) : std::span<const int>(), WhenFull::fail);
}

void Agent::tell_all(TaskMessageKind kind, const char* text) {
  TaskMessage message;
  message.kind = kind;
  set_text(message, text);
  for (const Task& task : tasks_) [[maybe_unused]] const auto sent = send_struct(task.socket.get(), message, {}, WhenFull::fail);
}

void Agent::fail(const Error& error) {
  reap(import_);
  reap(builder_);
  answer_.emplace();
  answer_->kind = TaskMessageKind::failed;
  set_text(*answer_, error.message());
  for (const Task& task : tasks_) tell(task);
  tasks_.clear();
  sources_.clear();
}

void Agent::reap(Child& child) {
  child.socket.reset();
  if (child.pid < 0) return;
  ::kill(child.pid, SIGKILL);
  while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  child.pid = -1;
}

}  // namespace spc
