#include "launch/host/host_side.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <iterator>

#include "base/format.hpp"
#include "base/text.hpp"
#include "image/reference/named_image.hpp"
#include "launch/host/data_file.hpp"
#include "launch/host/own_cgroup.hpp"
#include "launch/host/own_dev.hpp"
#include "launch/host/slurm_client.hpp"
#include "launch/site/policy_rules.hpp"
#include "protocol/store_layout.hpp"

namespace spc {

Result<void> add_source(HostSide& side, const std::string& source, const std::string& target,
                        std::uint32_t flags, const std::string& shown_as) {
  UniqueFd path(::open(source.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!path || ::fstat(path.get(), &status) != 0) {
    const int err = errno;
    auto error = Error::from_errno(err, "open mount source " + in_quotes(source));
    if (err == ENOENT)
      return std::move(error).hint("the source must exist on every node of the step");
    return std::move(error).hint("it is opened with the user's permissions on the node");
  }
  side.sources.push_back({.path = std::move(path), .flags = flags});
  side.root.targets.push_back({target, S_ISDIR(status.st_mode), shown_as, {}});
  return {};
}

void add_tmpfs(HostSide& side, const std::string& target, std::uint32_t flags, std::uint64_t size,
               std::optional<unsigned> mode, const std::string& shown_as) {
  side.sources.push_back({.path = {}, .flags = flags | TaskMessage::source_tmpfs, .size = size});
  side.root.targets.push_back({target, true, shown_as, mode});
}

namespace {

Result<void> add_bind(HostSide& side, const MountSpec& mount) {
  SPC_TRY(add_source(side, mount.source, mount.target, mount.flags, mount.shown_as));
  const bool directory = side.root.targets.back().directory;
  if (mount.create == MountSpec::Create::as_source ||
      directory == (mount.create == MountSpec::Create::directory))
    return {};
  side.sources.pop_back();
  side.root.targets.pop_back();
  return Error(ErrorKind::invalid,
               formatted("mount {}: the source is {}", in_quotes(mount.shown_as),
                         directory ? "a directory" : "a file"))
      .hint("without x-create the target has the type of the source");
}

Result<void> add_squashfs(HostSide& side, const MountSpec& mount) {
  auto file = SPC_TRY(open_data_file(mount.source));
  SPC_TRY_DURING("open mount source " + in_quotes(mount.source), refuse_fuse(file.get()));
  side.sources.push_back(
      {.path = std::move(file), .flags = mount.flags | TaskMessage::source_squashfs});
  side.root.targets.push_back({mount.target, true, mount.shown_as, {}});
  return {};
}

/// `most`: the site's limit of a tmpfs.
Result<void> add_mount(HostSide& side, const MountSpec& mount,
                       const std::map<std::string, std::string>& environment,
                       const std::string& most) {
  switch (mount.kind) {
    case MountSpec::Kind::bind: return add_bind(side, mount);
    case MountSpec::Kind::squashfs: return add_squashfs(side, mount);
    case MountSpec::Kind::removal:
      side.root.removals.push_back(
          {mount.target, side.root.targets.size(), mount.optional, mount.shown_as});
      return {};
    case MountSpec::Kind::tmpfs: break;
  }
  std::uint64_t size = 0;
  if (mount.size) {
    size = SPC_TRY_DURING("mount " + in_quotes(mount.shown_as),
                          bytes_of(*mount.size, memory_of_job(environment), most));
  }
  add_tmpfs(side, mount.target, mount.flags, size, mount.mode, mount.shown_as);
  side.sources.back().inodes = mount.inodes;
  return {};
}

/// Files of the host that make names resolve inside as outside. A host without one of them is fine.
Result<void> add_host_files(HostSide& side) {
  for (const char* file : {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}) {
    if (::access(file, R_OK) != 0) continue;
    SPC_TRY(add_source(side, file, file, 0, file));
    side.root.targets.back().optional = true;
  }
  return {};
}

/// --container-slurm.
Result<void> add_slurm_client(HostSide& side,
                              const std::map<std::string, std::string>& environment) {
  SlurmClient client = find_slurm_client(environment);
  if (!client.why_not.empty())
    return Error(ErrorKind::not_found, "find Slurm's commands: " + client.why_not);
  for (const auto& [source, target] : client.binds) {
    SPC_TRY(add_source(side, source, target, TaskMessage::source_read_only, target));
  }
  side.root.system_users = std::move(client.passwd_entries);
  side.root.files.push_back({kSlurmTable, std::move(client.table)});
  return {};
}

}  // namespace

std::vector<MountPlan> HostSide::mounts() const {
  std::vector<MountPlan> plans;
  auto removal = root.removals.begin();
  const auto add_removals = [&](std::size_t after) {
    for (; removal != root.removals.end() && removal->after <= after; ++removal)
      plans.push_back({"", removal->target, 0, ""});
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    add_removals(i);
    char path[PATH_MAX];
    const auto size = ::readlink(("/proc/self/fd/" + std::to_string(sources[i].path.get())).c_str(),
                                 path, sizeof path);
    std::string source =
        "tmpfs" + (sources[i].size != 0 ? ":size=" + std::to_string(sources[i].size) : "");
    if (size > 0) source.assign(path, static_cast<std::size_t>(size));
    if ((sources[i].flags & TaskMessage::source_terminals) != 0) source = "devpts";
    plans.push_back({source, root.targets[i].target, sources[i].flags, sources[i].asked_by});
  }
  add_removals(sources.size());
  return plans;
}

void HostSide::added_for(const std::string& whom) {
  for (OpenedSource& source : sources) {
    if (source.asked_by.empty()) source.asked_by = whom;
  }
}

Result<void> check_home(const std::string& home, bool is_hidden) {
  constexpr std::string_view kOfImages[] = {
      "/bin",       "/boot",          "/dev",      "/etc",       "/lib",     "/lib32",
      "/lib64",     "/libx32",        "/opt",      "/proc",      "/run",     "/sbin",
      "/sys",       "/tmp",           "/usr",      "/usr/bin",   "/usr/lib", "/usr/lib64",
      "/usr/local", "/usr/local/bin", "/usr/sbin", "/usr/share", "/var"};
  constexpr std::string_view kWhole[] = {"/dev/", "/etc/", "/proc/", "/sys/"};
  const std::string place = normal_path(home);
  const auto refuse = [&](const char* why) {
    return Error(ErrorKind::invalid, formatted("the home directory {} {}", in_quotes(home), why))
        .hint("mount what you need: --container-mounts=DIRECTORY");
  };
  if (!place.starts_with('/') || place == "/") {
    return Error(ErrorKind::invalid, "the node does not know the user's home directory, or it is /")
        .hint("the administrator has to make the user known on the node");
  }
  const bool is_below =
      std::ranges::any_of(kWhole, [&](std::string_view whole) { return place.starts_with(whole); });
  if (is_below || std::ranges::find(kOfImages, place) != std::end(kOfImages))
    return refuse("would cover the image's");
  if (is_hidden) return {};
  struct stat status {};
  struct stat root {};
  if (::stat(home.c_str(), &status) != 0) {
    return Error::from_errno(errno, "open the home directory " + in_quotes(home))
        .hint("it must exist on every node of the step");
  }
  if (!S_ISDIR(status.st_mode)) return refuse("is not a directory");
  const bool is_root =
      ::stat("/", &root) == 0 && root.st_dev == status.st_dev && root.st_ino == status.st_ino;
  return is_root ? refuse("is the node's root directory") : Result<void>();
}

Result<HostSide> gather(const LaunchRequest& request, const std::string& home,
                        const std::map<std::string, std::string>& environment, Log& log,
                        ContainerState state,
                        const std::function<Result<void>(HostSide&)>& before_mounts) {
  HostSide side;
  const bool is_new = state == ContainerState::is_new;
  if (is_new && request.contain) add_own_dev(side, request);
  if (is_new && (request.namespaces & own_cgroup) != 0) add_own_cgroup(side);
  if (is_new) SPC_TRY(add_host_files(side));
  side.added_for("every container");
  if (request.contain) {
    if (check_home(home, true)) add_tmpfs(side, home, 0, 0, {}, home);
  } else if (!home.empty()) {
    SPC_TRY_DURING("--container-mount-home", add_source(side, home, home, 0, home));
  }
  side.added_for(request.contain ? "--container-contain" : "--container-mount-home");
  if (!request.batch_script.empty()) {
    SPC_TRY(add_source(side, request.batch_script, request.batch_script,
                       TaskMessage::source_read_only, request.batch_script));
  }
  side.added_for("batch script");
  if (request.slurm.value_or(false))
    SPC_TRY_DURING("--container-slurm", add_slurm_client(side, environment));
  side.added_for("--container-slurm");
  if (before_mounts) SPC_TRY(before_mounts(side));
  for (const MountSpec& mount : request.mounts) {
    auto added = add_mount(side, mount, environment, request.max_tmpfs_size);
    if (added && mount.kind != MountSpec::Kind::removal)
      side.root.targets.back().by_user = !mount.by_site;
    const bool has_source =
        mount.kind == MountSpec::Kind::bind || mount.kind == MountSpec::Kind::squashfs;
    if (added && has_source && !mount.by_site) {
      SPC_TRY_DURING(mount.origin, check_mount_source(side.sources.back().path.get(), mount.source,
                                                      request.mounts_off));
    }
    if (!added && mount.optional) {
      if (!mount.silent)
        log.write(LogLevel::warning, formatted("{}: {}", mount.origin, added.error().message()));
      continue;
    }
    if (!added && added.error().sys_errno() == ENOENT && mount.kind == MountSpec::Kind::bind) {
      added =
          in_words(request.style, Event::no_mount_source, mount.source, std::move(added).error());
    }
    SPC_TRY_DURING(mount.origin, std::move(added));
    side.added_for(mount.origin);
  }
  return side;
}

void add_display(HostSide& side, const std::map<std::string, std::string>& job_environment) {
  const auto display = job_environment.find("DISPLAY");
  const auto authority = job_environment.find("XAUTHORITY");
  if (display == job_environment.end() || authority == job_environment.end() ||
      !authority->second.starts_with('/'))
    return;
  const std::string& path = authority->second;
  // Slurm's names for it: one of this job, or with home_xauthority the user's own.
  if (path.find("/.Xauthority-") == std::string::npos && !path.ends_with("/.Xauthority")) return;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid())
    return;
  // Without it programs say that they may not use the display: no reason to refuse the step.
  [[maybe_unused]] const auto added =
      add_source(side, path, path, TaskMessage::source_read_only, path);
  side.added_for("srun --x11");
}

void move_mount_target(RootSetup& root, const std::string& from, const std::string& to) {
  for (MountTarget& mount_target : root.targets) {
    if (mount_target.target == from) mount_target.target = to;
  }
}

std::optional<Digest> known_manifest(const std::string& name, const TagDemand& demand,
                                     const PolicyRecord& policy) {
  if (demand.pull == PullPolicy::always) return std::nullopt;
  const auto known =
      read_named_image(AT_FDCWD, SPC_STORE_DIR "/" + store_layout::name_path(name_key(name)), 0);
  if (!known || known->name != name || known->written <= policy.made_at) return std::nullopt;
  if (demand.meant) return known->is(*demand.meant) ? std::optional(known->manifest) : std::nullopt;
  const TagAge age{.asked_at = known->asked_at, .now = ::time(nullptr)};
  const bool need_not_ask =
      demand.immutable || demand.pull == PullPolicy::missing || demand.pull == PullPolicy::never;
  const bool fresh = need_not_ask || age.is_fresh(policy.tag_ttl, policy.job_tag_ttl, demand.since);
  return fresh ? std::optional(known->manifest) : std::nullopt;
}

}  // namespace spc
