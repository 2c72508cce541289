// The leader's decisions on the host: the request completed by the site, and the order of the
// container.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/format.hpp"
#include "base/process/kernel.hpp"
#include "base/socket.hpp"
#include "launch/leader.hpp"
#include "launch/site/enroot_compat.hpp"
#include "launch/sources/host_side.hpp"
#include "protocol/fuse.hpp"
#include "reference/location.hpp"
#include "request/container_name.hpp"

namespace spc {

// --- container order ---

namespace {

/// Returns the NamespaceBits of the new container. Root needs no user namespace to be root.
std::uint32_t namespaces_of(const LaunchRequest& request) {
  const bool remaps = request.remap_root.value_or(false) && ::geteuid() != 0;
  return request.namespaces | (remaps ? own_user : 0U);
}

/// Returns the size limit of each writable part. Its contents use the job's memory, so the limit is
/// a share of that and not of the machine's: programs then get ENOSPC instead of waiting for memory
/// that the job cannot get. A limit that the site gives in bytes is capped at half of the job's
/// memory.
Result<std::uint64_t> upper_size(const LaunchRequest& request, const PolicyRecord& policy,
                                 const std::map<std::string, std::string>& job) {
  const std::uint64_t memory = memory_of_job(job);
  if (request.tmpfs_size) {
    return SPC_TRY_DURING("--container-tmpfs-size",
                          bytes_of(*request.tmpfs_size, memory, request.max_tmpfs_size));
  }
  const std::uint64_t part = SPC_TRY(bytes_of({.percent = policy.upper_percent}, memory, ""));
  return policy.upper_bytes != 0 ? std::min(policy.upper_bytes, part) : part;
}

/// Drops the requested mounts with pyxis's warnings, since pyxis never adds any here.
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

/// --container-mount-cwd, or the site's default, which leaves out directories of every image.
Result<void> add_work_directory(LaunchRequest& request, bool by_default) {
  if (!request.mount_cwd.value_or(by_default)) return {};
  const std::string& here = request.paths.here;
  if (check_home(here, true)) {
    request.mount_work_directory();
  } else if (request.mount_cwd) {
    return Error(ErrorKind::invalid,
                 formatted("--container-mount-cwd: {} would cover the image's", in_quotes(here)))
        .hint("start in another directory, or srun -D DIRECTORY");
  }
  return {};
}

std::uint32_t nodes_of_step(const std::map<std::string, std::string>& job) {
  const auto nodes = job.find("SLURM_STEP_NUM_NODES");
  return nodes != job.end()
             ? static_cast<std::uint32_t>(std::strtoul(nodes->second.c_str(), nullptr, 10))
             : 1;
}

}  // namespace

Result<void> Leader::complete_request() {
  const AgentMessage& policy = start_.policy;
  if (policy.descriptors.empty()) return Error(ErrorKind::internal, "no policy for the leader");
  if (!task_.asked.only_pull) SPC_TRY(check_kernel());  // before an image is pulled in vain
  SitePolicy& site = entry_.site;
  site = SPC_TRY(SitePolicy::of(policy.descriptors.front().get()));
  if (!site.config_error.empty())
    task_.log.write(LogLevel::record, "last valid configuration in use: " + site.config_error);
  SPC_TRY(add_enroot_files(site, task_.job, &task_.log));
  site.override_with(task_.asked.overrides);
  *task_.asked.style = message_style(site);
  request_ = SPC_TRY(fit_to_site(task_.asked, policy.policy, site));
  request_.nodes = nodes_of_step(task_.job);
  if (const std::string& name = request_.catalogue_name;
      !name.empty() && *task_.asked.style == MessageStyle::own && is_first())
    task_.log.write(LogLevel::info, formatted("image {} of the site's catalogue: {}",
                                              in_quotes(name), without_secrets(request_.image)));
  const std::string missing = task_.asked.environment.missing_in(task_.job);
  if (!missing.empty() && *task_.asked.style == MessageStyle::own && is_first())
    task_.log.write(LogLevel::warning, "--container-env: " + missing);
  // --container-explain must not discard an existing container.
  auto& name = request_.name;
  if (request_.explain && name && name->use == ContainerName::Use::replace) name.reset();
  if (request_.explain && name && name->use == ContainerName::Use::remove)
    name->use = ContainerName::Use::automatic;
  return {};
}

/// Decides what becomes of the named container, and tells of those of this name on other nodes.
Result<void> Leader::decide_name(const WantedImage& wanted) {
  const bool of_job = entry_.site.container_scope == "job";
  auto decided = named_.decide(wanted);
  const bool is_missing = !decided && decided.error().kind() == ErrorKind::not_found;
  const bool is_second = decided && named_.plan() == NamePlan::make && request_.nodes == 1 &&
                         *request_.style == MessageStyle::own && !request_.explain;
  if ((!is_missing && !is_second) || request_.name->step_key()) return decided;
  const std::string nodes = other_nodes_with(*request_.name, of_job, task_.job);
  if (nodes.empty()) return decided;
  if (is_missing)
    return std::move(decided).error().hint(
        formatted("containers stay on their node, and {} has it: -w {}", nodes, nodes));
  task_.log.write(LogLevel::warning,
                  formatted("a second container {} is made on this node: {} has one (hint: to use "
                            "that, -w {})",
                            in_quotes(request_.name->text), nodes, nodes));
  return {};
}

/// Decides the image, or the container of a name, from texts and files.
Result<void> Leader::plan_image() {
  const PolicyRecord& policy = start_.policy.policy;
  if (!request_.image.empty()) {
    location_ = SPC_TRY(ImageLocation::parse(request_.image, policy.default_registry));
    SPC_TRY(check_image(location_, entry_.site, task_.job));
  }
  if (request_.name) SPC_TRY(decide_name(wanted_image(request_, location_, policy)));
  if (named_.plan() == NamePlan::make) say_import(task_, Event::import_begins);
  // pyxis has no such line, and scripts rely on the number of its lines.
  const std::string origin = is_first() ? named_.origin() : "";
  if (!origin.empty() && *task_.asked.style == MessageStyle::own)
    task_.log.write(LogLevel::info, origin);
  image_ = SPC_TRY(order_image({request_, policy, entry_.site, task_.job, start_.policy.manifest,
                                named_, importer_, task_.log},
                               location_));
  // The image's name is needed to ask the registry about it.
  if (request_.image.empty() && !image_.request.empty())
    location_ = SPC_TRY(ImageLocation::parse(named_.notes().image, policy.default_registry));
  return {};
}

/// Collects the mounts on the host.
Result<void> Leader::plan_mounts() {
  const bool is_closed = joins() && (named_.namespaces() & own_user) != 0;
  if (joins()) {  // it has the site's mounts already
    const auto is_sites = [](const MountSpec& mount) { return mount.origin != MountSpec().origin; };
    std::erase_if(request_.mounts, is_sites);
  }
  // Later mounts in a user namespace are not locked: its root could remove their flags.
  if (is_closed) ignore_mounts(request_, task_.log);
  const bool by_default =
      entry_.site.mount_home.value_or(start_.policy.policy.mount_home != 0) && !joins();
  mounts_home_ = !request_.contain && request_.mount_home.value_or(by_default);
  if (!is_closed)
    SPC_TRY(add_work_directory(request_, entry_.site.mount_cwd && !joins() && !request_.contain));
  UserIdentity& user = entry_.spec.user;
  if (covers_home()) user = UserIdentity::of_job(task_.job);
  if (mounts_home_) {
    auto usable = check_home(user.home, false);
    if (!usable && request_.mount_home)
      return std::move(usable).error().during("--container-mount-home");
    if (!usable) task_.log.write(LogLevel::warning, "not mounted: " + usable.error().message());
    mounts_home_ = usable.has_value();
  }
  const auto run_hooks = [&](RootSetup& so_far) -> Result<void> {
    if (!joins()) entry_.edits = SPC_TRY(prepare_edits(*hooks_, so_far));
    return {};
  };
  const auto state = joins() ? ContainerState::runs : ContainerState::is_new;
  RootSetup& root = entry_.spec.root;
  root = SPC_TRY(
      gather(request_, covers_home() ? user.home : "", task_.job, task_.log, state, run_hooks));
  root.container_runs = joins();
  for (Mount& mount : root.mounts) {
    if (!request_.mount_home && mount.asked_by == "--container-mount-home") mount.optional = true;
  }
  if (!request_.contain && !is_closed) add_display(root, task_.job);
  return {};
}

Result<void> Leader::plan() {
  SPC_TRY(plan_image());
  if (request_.only_pull) {
    if (!image_.request.empty()) return {};
    return Error(ErrorKind::invalid, "the store takes no squashfs and no directory");
  }
  const PolicyRecord& policy = start_.policy.policy;
  upper_size_ = SPC_TRY(upper_size(request_, policy, task_.job));
  if (joins()) SPC_TRY(check_join(task_.asked, named_, upper_size_, task_.log));
  SPC_TRY(plan_mounts());
  ContainerSpec& spec = entry_.spec;
  spec.image =
      request_.image.empty() ? without_secrets(named_.notes().image) : location_.canonical();
  spec.from = image_.from;
  spec.by_fuse = policy.most_layers == 0 ||
                 (policy.squashfs == PolicyRecord::by_fuse_for_users && ::getuid() != 0);
  if (request_.explain) spec.mounts = shown_mounts(spec.root);
  spec.writable = request_.writable.value_or(true);
  spec.namespaces = namespaces_of(request_);
  if (joins()) return {};
  entry_.security =
      SPC_TRY(read_security(request_, entry_.site, (spec.namespaces & own_user) != 0));
  warn_of_idle_keys(entry_.site, task_.job, task_.log);
  return {};
}

namespace {

/// Returns whether the source is a file that a server serves.
bool is_file(const Mount& mount) { return (mount.flags & TaskMessage::source_squashfs) != 0; }

}  // namespace

Result<void> Leader::send_start(std::uint32_t flags) const {
  const ContainerSpec& spec = entry_.spec;
  const auto& mounts = spec.root.mounts;
  TaskMessage message;
  message.kind = TaskMessageKind::start;
  message.index = static_cast<std::uint32_t>(mounts.size());
  message.servers = static_cast<std::uint32_t>(std::ranges::count_if(mounts, is_file)) +
                    ((image_.flags & TaskMessage::start_squashfs) != 0 ? 1 : 0);
  if (message.index > kMaxSources) {
    return Error(ErrorKind::invalid,
                 formatted("--container-mounts: more than {} mounts", std::to_string(kMaxSources)));
  }
  message.start_flags = image_.flags | flags;
  if (!spec.writable) message.start_flags |= TaskMessage::start_read_only;
  message.manifest = image_.manifest;
  message.image_name = image_.image_name;
  message.namespaces = spec.namespaces;
  message.upper_size = upper_size_;
  return send_struct(line_.socket(), message);
}

Result<void> Leader::send_sources() const {
  TaskMessage message{.kind = TaskMessageKind::source};
  const auto give = [&](const UniqueFd& path) {
    const int passed[] = {path.get()};
    const bool has_path = path && (message.source_flags & TaskMessage::source_squashfs) == 0;
    return send_struct(line_.socket(), message, std::span(passed, has_path ? 1 : 0));
  };
  for (const Mount& mount : entry_.spec.root.mounts) {
    message.source_flags = mount.flags;
    message.size = mount.size;
    message.inodes = mount.inodes;
    SPC_TRY(give(mount.source));
  }
  message.source_flags = 0;
  return (image_.flags & TaskMessage::start_directory) != 0 ? give(image_.file) : Result<void>();
}

Result<void> Leader::send_file(std::uint32_t number, int server) const {
  const bool is_image = (image_.flags & TaskMessage::start_squashfs) != 0 && number-- == 0;
  const UniqueFd* file = is_image ? &image_.file : nullptr;
  for (const Mount& mount : entry_.spec.root.mounts)
    if (file == nullptr && is_file(mount) && number-- == 0) file = &mount.source;
  if (file == nullptr)
    return Error(ErrorKind::internal, "serve a file: there is none of this number");
  const int passed[] = {file->get()};
  // If the server has ended, the builder reports the reason.
  [[maybe_unused]] const auto sent =
      send_struct(server, FuseLoan{.offset = is_image ? image_.offset : 0}, passed);
  return {};
}

void Leader::add_user() {
  ContainerSpec& spec = entry_.spec;
  RootSetup& root = spec.root;
  UserIdentity& user = spec.user;
  if (!covers_home()) user = UserIdentity::of_job(task_.job);
  root.namespaces = joins() ? named_.namespaces() : spec.namespaces;
  if (joins()) return;
  root.passwd_entry = user.passwd_entry();
  root.shadow_entry = user.shadow_entry();
  root.group_entries = user.group_entries;
  root.has_strange_groups = (root.namespaces & own_user) != 0 && user.group_entries.size() > 1;
  const std::string home = (root.namespaces & own_user) != 0 ? user.as_root().home : user.home;
  if (covers_home()) move_mount_target(root, user.home, home);
  // Programs expect HOME to exist.
  if (!mounts_home_ && check_home(home, true)) root.directories.push_back(home);
}

}  // namespace spc
