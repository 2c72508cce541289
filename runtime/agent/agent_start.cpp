#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "agent/agent.hpp"
#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"
#include "base/clock.hpp"
#include "base/socket.hpp"

/// From what the leader asks for to a container that is ready: which image, which servers, and the
/// builder.

namespace spc::agent {

Result<void> Agent::start(const TaskMessage& message) {
  if (looking_ || holder_ || began_ != 0 || message.index > kMaxSources ||
      message.servers > kMaxSources)
    return Error(ErrorKind::internal, "unexpected start request");
  order_.flags = message.start_flags;
  order_.sources_due = message.index;
  order_.files_due = message.servers;
  order_.namespaces =
      message.namespaces & ~(tools_->id_map ? 0U : own_user);  // root is root anyway
  order_.upper_size = message.upper_size;
  image_name_ = message.image_name;
  if (order_.is(TaskMessage::start_private))
    steps_socket_.reset();  // there is no container of the step
  began_ = now_us();
  if (order_.is(TaskMessage::start_join)) return join_running();
  if (joined_ || (named_ && !named_->lock))
    return Error(ErrorKind::internal, "start of a running container");
  if (order_.is(TaskMessage::start_squashfs |
                TaskMessage::start_directory)) {  // and nothing else: no layer of the store
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
    if (image) return use(message.manifest, *std::move(image));
  }
  return start_import();
}

/// An image of the store.
Result<void> Agent::use(const Digest& manifest, ImageFiles image) {
  image_ = manifest;
  order_.image = std::move(image);
  if (order_.is(TaskMessage::start_pull)) return tell_all(TaskMessageKind::pulled, {});
  if (named_) order_.kept = SPC_TRY(named_->keep(order_.image));
  const bool by_fuse =
      tools_->policy.squashfs == PolicyRecord::by_fuse_for_users && order_.uid != 0;
  if (by_fuse || order_.image.layers.size() > tools_->policy.most_layers) {
    for (const LayerFile& layer : order_.image.layers)
      order_.image.served.push_back(SPC_TRY(serve(layer.file.get())));
    order_.image.layers.clear();
  }
  return start_builder();
}

/// A server for the squashfs in `file`: a process of the user, as for him alone the image is. A job
/// of root takes the service user: what an image says must not be read with any privilege. It is
/// told to say that all is root's, though (protocol/fuse.hpp). `file` may be a socket: to the
/// leader, or to a server in another step, which this one joins.
Result<ServedLayer> Agent::serve(int file) {
  auto device = SPC_TRY(own(::open("/dev/fuse", O_RDWR | O_CLOEXEC), "open \"/dev/fuse\""));
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const uid_t uid = order_.uid != 0 ? order_.uid : tools_->store.service_uid();
  const gid_t gid = order_.uid != 0 ? order_.gid : tools_->store.service_gid();
  helpers_.push_back(SPC_TRY(start_helper("fuse", order_.uid != 0 ? "0" : "0r", uid, gid,
                                          {device.get(), file, theirs.get()})));
  servers_.push_back(std::move(ours));
  return ServedLayer{std::move(device), servers_.back().get()};
}

Result<void> Agent::start_builder() {
  const int leader = tasks_.front().socket.get();
  for (std::uint32_t number = 0; number < order_.files_due; ++number) {
    const auto [leads, servers] = SPC_TRY(socket_pair());
    const bool is_image = order_.is(TaskMessage::start_squashfs) && number == 0;
    (is_image ? order_.image.served : order_.served).push_back(SPC_TRY(serve(servers.get())));
    const int passed[] = {leads.get()};
    SPC_TRY(send_struct(leader, TaskMessage{.kind = TaskMessageKind::serves, .index = number},
                        passed, WhenFull::fail));
  }
  // Before the fork: the leader answers meanwhile.
  SPC_TRY(send_struct(leader, TaskMessage{.kind = TaskMessageKind::sources}, {}, WhenFull::fail));
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto import_us = static_cast<std::uint32_t>(now_us() - began_);
  const pid_t child = SPC_TRY(fork_child((order_.namespaces & own_pid) != 0 ? CLONE_NEWPID : 0));
  if (child > 0) {
    builder_ = {child, std::move(ours)};
    order_.image.served.clear();
    order_.served.clear();
    return {};
  }

  common_.reset();  // else slurmstepd's end of the step would stay unseen
  TaskMessage report = joined_.value_or(TaskMessage{});
  report.named_state = 0;
  if (!joined_) report.manifest = image_;
  report.times[static_cast<std::size_t>(Phase::import)] = import_us;
  const auto built = build_container(order_, *tools_, tasks_.front(), report);
  report.kind = built ? TaskMessageKind::ready : TaskMessageKind::failed;
  if (!built) report.failure = WireError(built.error());
  std::vector<int> namespaces;
  if (built) std::ranges::transform(*built, std::back_inserter(namespaces), &UniqueFd::get);
  if (built && !joined_) namespaces.insert(namespaces.begin() + 1, notes_.get());
  ::setpriority(PRIO_PROCESS, 0, 19);  // whoever waits is to go first
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
    helpers_.push_back(builder_.pid);  // stays until we end
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
    servers_.clear();
    return use(image_, std::move(order_.image));
  }
  if (report.kind != TaskMessageKind::ready) return report.failure.unread();
  if (!joined_) namespaces_ = *std::move(descriptors);
  if (named_) SPC_TRY(named_->settle());
  layers_ = std::move(order_.image.layers);
  answer_all(report);
  reap(builder_);  // last: its end takes longer than its answer
  // Without it the job's next step takes longer, and nothing else: slurmd's log has it.
  // Images of many layers share few places: a job holds at most most_layers * (1 + 1/2 + ... +
  // 1/8).
  const auto places =
      std::min<std::size_t>(8, layers_.empty() ? 0 : tools_->policy.most_layers / layers_.size());
  if (step_.job != 0 && places > 0)
    held_ = hold_layers(
        layers_, tools_->layer_owner(order_.uid, order_.gid),
        traces_of(step_.uid, step_.job) + std::to_string(image_.bytes[0] % places) + "h");
  return {};
}

}  // namespace spc::agent
