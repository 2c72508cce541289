#include "launch/container_order.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/format.hpp"
#include "base/process/kernel.hpp"
#include "base/socket.hpp"
#include "image/reference/file_url.hpp"
#include "launch/host/join_check.hpp"
#include "launch/host/security_profiles.hpp"
#include "launch/site/enroot_compat.hpp"
#include "launch/site/policy_rules.hpp"
#include "launch/site/site_request.hpp"
#include "protocol/fuse.hpp"

namespace spc {
namespace {

/// NamespaceBits that the container shall have. Root is root anyway.
std::uint32_t namespaces_of(const LaunchRequest& request) {
  const bool remaps = request.remap_root.value_or(false) && ::geteuid() != 0;
  return request.namespaces | (remaps ? own_user : 0U);
}

/// What is written there takes the job's memory, so the limit is a part of that and not of the
/// machine's: who fills it is told so, and does not wait for memory that the job cannot get. A
/// site's bytes are not more than half of it.
Result<std::uint64_t> upper_size(const Terms& terms,
                                 const std::map<std::string, std::string>& job) {
  const LaunchRequest& request = terms.request;
  const std::uint64_t memory = memory_of_job(job);
  if (request.tmpfs_size) {
    return SPC_TRY_DURING("--container-tmpfs-size",
                          bytes_of(*request.tmpfs_size, memory, request.max_tmpfs_size));
  }
  const PolicyRecord& policy = terms.policy;
  const std::uint64_t part = SPC_TRY(bytes_of({.percent = policy.upper_percent}, memory, ""));
  return policy.upper_bytes != 0 ? std::min(policy.upper_bytes, part) : part;
}

/// The image, or the container of a name, as far as they are texts and files.
Result<void> plan_image(const OrderRequest& with, ContainerOrder& order) {
  const auto& [task, terms, named, hooks, importer] = with;
  const LaunchRequest& request = terms.request;
  const std::string& registry = terms.policy.default_registry;
  if (!request.image.empty())
    order.location = SPC_TRY(ImageLocation::parse(request.image, registry));
  if (!request.image.empty()) SPC_TRY(check_image(order.location, terms.site, task.job));
  if (request.name) SPC_TRY(named.decide(wanted_image(request, order.location, terms.policy)));
  if (named.plan() == NamePlan::make) say_import(task, Event::import_begins);
  order.image = SPC_TRY(order_image(
      {request, terms.policy, terms.site, task.job, terms.earlier, named, importer, task.log},
      order.location));
  order.joins = (order.image.flags & TaskMessage::start_join) != 0;
  const bool asks_for_stored =
      request.image.empty() && !order.image.request.empty();  // it wants to know for which image
  if (asks_for_stored)
    order.location = SPC_TRY(ImageLocation::parse(named.notes().image, registry));
  return {};
}

/// The words are those of pyxis, which never adds any.
void ignore_mounts(LaunchRequest& request, Log& log) {
  const auto ignore = [&](const char* option) {
    log.write(LogLevel::warning,
              formatted("ignoring --{} when attaching to a running container with remapped root",
                        option));
  };
  if (!request.mounts.empty()) ignore("container-mounts");
  if (request.mount_home.value_or(false)) ignore("container-mount-home");
  if (request.slurm.value_or(false)) ignore("container-slurm");
  request.mounts.clear();
  request.mount_home = false;
  request.slurm = false;
}

/// What the host gives.
Result<void> plan_mounts(const OrderRequest& with, ContainerOrder& order) {
  const auto& [task, terms, named, hooks, importer] = with;
  LaunchRequest request = terms.request;
  if (order.joins) {  // it has those of the site
    const auto is_sites = [](const MountSpec& mount) { return mount.origin != MountSpec().origin; };
    std::erase_if(request.mounts, is_sites);
  }
  // What is attached there later is not locked: root of that user namespace could take its flags
  // off.
  if (order.joins && (named.namespaces() & own_user) != 0) ignore_mounts(request, task.log);
  const bool by_default =
      terms.site.mount_home.value_or(terms.policy.mount_home != 0) && !order.joins;
  order.mounts_home = !request.contain && request.mount_home.value_or(by_default);
  const bool hides_home = request.contain && !order.joins;
  if (order.mounts_home || hides_home) order.spec.user = UserIdentity::of_job(task.job);
  if (order.mounts_home) {
    auto usable = check_home(order.spec.user.home, false);
    if (!usable && request.mount_home)
      return std::move(usable).error().during("--container-mount-home");
    if (!usable) task.log.write(LogLevel::warning, "not mounted: " + usable.error().message());
    order.mounts_home = usable.has_value();
  }
  order.covers_home = order.mounts_home || hides_home;
  const auto run_hooks = [&](HostSide& so_far) -> Result<void> {
    if (!order.joins) order.hooks = SPC_TRY(PreparedHooks::prepare(with.hooks, so_far));
    return {};
  };
  const std::string home = order.covers_home ? order.spec.user.home : "";
  const auto state = order.joins ? ContainerState::runs : ContainerState::is_new;
  order.side = SPC_TRY(gather(request, home, task.job, task.log, state, run_hooks));
  const bool is_closed = order.joins && (named.namespaces() & own_user) != 0;
  if (!request.contain && !is_closed) add_display(order.side, task.job);
  return {};
}

std::uint32_t nodes_of_step(const std::map<std::string, std::string>& job) {
  const auto nodes = job.find("SLURM_STEP_NUM_NODES");
  return nodes != job.end()
             ? static_cast<std::uint32_t>(std::strtoul(nodes->second.c_str(), nullptr, 10))
             : 1;
}

}  // namespace

Result<Terms> read_terms(const TaskContext& task, const AgentMessage& policy) {
  if (policy.descriptors.empty()) return Error(ErrorKind::internal, "no policy for the leader");
  if (!task.asked.only_pull) SPC_TRY(check_kernel());  // before an image is pulled for nothing
  Terms terms;
  terms.policy = policy.policy;
  terms.earlier = policy.manifest;
  terms.site = SPC_TRY(SitePolicy::of(policy.descriptors.front().get()));
  SPC_TRY(add_enroot_files(terms.site, task.job, &task.log));
  terms.site.override_with(task.asked.overrides);
  *task.asked.style = message_style(terms.site);
  terms.request = SPC_TRY(fit_to_site(task.asked, terms.policy, terms.site));
  terms.request.nodes = nodes_of_step(task.job);
  // Explaining takes no container away.
  auto& name = terms.request.name;
  if (task.asked.explain && name && name->use == ContainerName::Use::replace) name.reset();
  if (task.asked.explain && name && name->use == ContainerName::Use::remove)
    name->use = ContainerName::Use::automatic;
  return terms;
}

Result<ContainerOrder> plan_container(OrderRequest request) {
  const Terms& terms = request.terms;
  ContainerOrder order;
  SPC_TRY(plan_image(request, order));
  if (terms.request.only_pull) {
    if (!order.image.request.empty()) return order;
    return Error(ErrorKind::invalid, "the store takes no squashfs and no directory");
  }
  order.upper_size = SPC_TRY(upper_size(terms, request.task.job));
  if (order.joins)
    SPC_TRY(check_join(request.task.asked, request.named, order.upper_size, request.task.log));
  SPC_TRY(plan_mounts(request, order));
  ContainerSpec& spec = order.spec;
  const bool has_image = !terms.request.image.empty();
  spec.image =
      has_image ? order.location.canonical() : without_secrets(request.named.notes().image);
  spec.from = order.image.from;
  spec.by_fuse = terms.policy.most_layers == 0 ||
                 (terms.policy.squashfs == PolicyRecord::by_fuse_for_users && ::getuid() != 0);
  spec.mounts = order.side.mounts();
  spec.writable = terms.request.writable.value_or(true);
  spec.namespaces = namespaces_of(terms.request);
  if (!order.joins)
    order.security =
        SPC_TRY(read_security(terms.request, terms.site, (spec.namespaces & own_user) != 0));
  return order;
}

Result<void> send(const ContainerOrder& order, std::uint32_t start_flags, int agent) {
  const ImageOrder& image = order.image;
  const auto& sources = order.side.sources;
  const auto is_file = [](const OpenedSource& source) {
    return (source.flags & TaskMessage::source_squashfs) != 0;
  };
  TaskMessage message;
  message.kind = TaskMessageKind::start;
  message.index = static_cast<std::uint32_t>(sources.size());
  message.servers = static_cast<std::uint32_t>(std::ranges::count_if(sources, is_file)) +
                    ((image.flags & TaskMessage::start_squashfs) != 0 ? 1 : 0);
  if (message.index > kMaxSources) {
    return Error(ErrorKind::invalid,
                 formatted("--container-mounts: more than {} mounts", std::to_string(kMaxSources)));
  }
  message.start_flags = image.flags | start_flags;
  if (!order.spec.writable) message.start_flags |= TaskMessage::start_read_only;
  message.manifest = image.manifest;
  message.image_name = image.image_name;
  message.namespaces = order.spec.namespaces;
  message.upper_size = order.upper_size;
  return send_struct(agent, message);
}

Result<void> send_sources(const ContainerOrder& order, int agent) {
  TaskMessage message{.kind = TaskMessageKind::source};
  const auto give = [&](const UniqueFd& path) {
    const int passed[] = {path.get()};
    const bool has_path = path && (message.source_flags & TaskMessage::source_squashfs) == 0;
    return send_struct(agent, message, std::span(passed, has_path ? 1 : 0));
  };
  for (const OpenedSource& source : order.side.sources) {
    message.source_flags = source.flags;
    message.size = source.size;
    message.inodes = source.inodes;
    SPC_TRY(give(source.path));
  }
  message.source_flags = 0;
  return (order.image.flags & TaskMessage::start_directory) != 0 ? give(order.image.file)
                                                                 : Result<void>();
}

Result<void> send_file(const ContainerOrder& order, std::uint32_t number, int server) {
  const bool is_image = (order.image.flags & TaskMessage::start_squashfs) != 0 && number-- == 0;
  const UniqueFd* file = is_image ? &order.image.file : nullptr;
  for (const OpenedSource& source : order.side.sources) {
    const bool is_file = (source.flags & TaskMessage::source_squashfs) != 0;
    if (file == nullptr && is_file && number-- == 0) file = &source.path;
  }
  if (file == nullptr)
    return Error(ErrorKind::internal, "serve a file: there is none of this number");
  const int passed[] = {file->get()};
  // Of a server that has ended the builder knows more.
  [[maybe_unused]] const auto sent =
      send_struct(server, FuseLoan{.offset = is_image ? order.image.offset : 0}, passed);
  return {};
}

RootSetup root_setup(ContainerOrder& order, const NamedStart& named,
                     const std::map<std::string, std::string>& job) {
  UserIdentity& user = order.spec.user;
  if (!order.covers_home) user = UserIdentity::of_job(job);
  RootSetup root = std::move(order.side.root);
  root.for_other_tasks = user.for_other_tasks();
  root.container_runs = order.joins;
  root.namespaces = order.joins ? named.namespaces() : order.spec.namespaces;
  if (order.joins) return root;
  root.passwd_entry = user.passwd_entry();
  root.shadow_entry = user.shadow_entry();
  root.group_entries = user.group_entries;
  root.has_strange_groups = (root.namespaces & own_user) != 0 && user.group_entries.size() > 1;
  const std::string home = (root.namespaces & own_user) != 0 ? user.as_root().home : user.home;
  if (order.covers_home) move_mount_target(root, user.home, home);
  // Programs expect that HOME exists.
  if (!order.mounts_home && check_home(home, true)) root.directories.push_back(home);
  return root;
}

}  // namespace spc
