// Mount sources that the leader opens on the host: requested mounts, cgroup, /dev and the user's
// files. Also compiles the security profiles.

#include "launch/sources/host_side.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <string_view>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "launch/site/site_request.hpp"
#include "launch/sources/slurm_client.hpp"
#include "protocol/store_layout.hpp"
#include "reference/first_bytes.hpp"
#include "reference/reference.hpp"
#include "task/granted_devices.hpp"
#include "task/security.hpp"

namespace spc {

// --- data file ---

namespace {

constexpr std::size_t kMostMounts = 4 << 20;  // bytes of mountinfo

Error cannot_open(int err, const std::string& path) {
  auto error = Error::from_errno(err, "open mount source " + in_quotes(path));
  if (err == ENOENT)
    return std::move(error).hint("the source must exist on every node of the step");
  return std::move(error).hint("it is opened with the user's permissions on the node");
}

}  // namespace

Result<UniqueFd> open_data_file(const std::string& path) {
  const UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!place || ::fstat(place.get(), &status) != 0) return cannot_open(errno, path);
  if (!S_ISREG(status.st_mode)) {
    return Error(ErrorKind::invalid, formatted("open mount source {}: not a file", in_quotes(path)))
        .hint("drop the flag sqsh for a directory");
  }
  const std::string again = "/proc/self/fd/" + std::to_string(place.get());
  UniqueFd file(::open(again.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return cannot_open(errno, path);
  std::array<std::byte, sizeof(SquashfsSuper)> head{};
  const ssize_t got = ::pread(file.get(), head.data(), head.size(), 0);
  if (got < 0) return Error::from_errno(errno, "read mount source " + in_quotes(path));
  const auto bytes = std::span(head).first(static_cast<std::size_t>(got));
  if (!looks_like_squashfs(bytes)) {
    return Error(ErrorKind::invalid,
                 formatted("open mount source {}: not a squashfs", in_quotes(path)))
        .hint("create one: mksquashfs DIRECTORY FILE.sqsh");
  }
  SPC_TRY_DURING("open mount source " + in_quotes(path),
                 parse_squashfs_super(bytes, static_cast<std::uint64_t>(status.st_size)));
  return file;
}

namespace {

/// Returns whether root has mounted the file's FUSE file system, and `allowed` has its type or,
/// as CVMFS has none, its source. Users cannot choose the user of a mount.
bool is_allowed_fuse(int file, const std::vector<std::string>& allowed) {
  struct statx status {};
  if (allowed.empty() ||
      ::statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &status) != 0)
    return false;
  const UniqueFd mounts(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
  const auto text = read_file(mounts.get(), kMostMounts);
  if (!text) return false;
  const std::string line = "\n" + std::to_string(status.stx_mnt_id) + " ";
  const auto at = ("\n" + *text).find(line);
  if (at == std::string::npos) return false;
  std::string_view rest = std::string_view(*text).substr(at);
  rest = rest.substr(0, rest.find('\n'));
  const auto end = rest.find(" - ");
  if (end == std::string_view::npos) return false;
  const auto fields = split(rest.substr(end + 3), ' ');  // type, source, options
  return fields.size() == 3 && fields[2].find(",user_id=0,") != std::string_view::npos &&
         (std::ranges::find(allowed, fields[0]) != allowed.end() ||
          std::ranges::find(allowed, fields[1]) != allowed.end());
}

}  // namespace

Result<void> refuse_fuse(int file, const std::vector<std::string>& allowed) {
  struct statfs status {};
  if (::fstatfs(file, &status) != 0) return Error::from_errno(errno, "ask for its file system");
  if (status.f_type != FUSE_SUPER_MAGIC || is_allowed_fuse(file, allowed)) return {};
  return Error(ErrorKind::refused, "it is on a FUSE file system")
      .hint("copy it to a local disk or to a network file system of the kernel");
}

// --- own cgroup ---

namespace {

constexpr char kCgroups[] = "/sys/fs/cgroup";
constexpr std::uint32_t kAsShown = TaskMessage::source_read_only | TaskMessage::source_no_exec;
constexpr std::uint64_t kCgroupRoom = 64 << 10;  // bytes: holds mount targets only

/// Returns the mount point that systemd, and so every distribution, uses for this hierarchy of
/// version 1.
std::string place_of(std::string_view controllers) {
  if (controllers.empty()) return "/unified";
  constexpr std::string_view kNamed = "name=";
  if (controllers.starts_with(kNamed)) controllers.remove_prefix(kNamed.size());
  return "/" + std::string(controllers);
}

/// Returns the step's cgroup, to which Slurm applies the limits. Its tasks have cgroups below, and
/// a container may have several tasks.
std::string without_task(std::string_view path) {
  const auto last = path.rfind('/');
  return std::string(path.substr(last + 1).starts_with("task_") ? path.substr(0, last) : path);
}

/// Adds the hierarchy of a line HIERARCHY:CONTROLLERS:PATH, cgroups(7). A hierarchy that is not
/// mounted needs no hiding.
void add_hierarchy(RootSetup& root, std::string_view line) {
  const auto first = line.find(':');
  const auto second = line.find(':', first + 1);
  if (second == std::string_view::npos) return;
  const std::string_view controllers = line.substr(first + 1, second - first - 1);
  const std::string source =
      kCgroups + place_of(controllers) + without_task(line.substr(second + 1));
  const auto add_at = [&](const std::string& place) {
    [[maybe_unused]] const auto added = add_source(root, source, place, kAsShown, place);
  };
  add_at(kCgroups + place_of(controllers));
  if (controllers.find(',') == std::string_view::npos) return;
  for (const std::string_view one : split(controllers, ',')) add_at(kCgroups + place_of(one));
}

/// Adds the hierarchy if only version 2 is mounted: one hierarchy, whose paths are relative to its
/// only mount.
bool add_unified(RootSetup& root, std::string_view line) {
  constexpr std::string_view kUnified = "0::";
  if (!line.starts_with(kUnified) ||
      ::access((std::string(kCgroups) + "/cgroup.controllers").c_str(), F_OK) != 0)
    return false;
  return add_source(root, kCgroups + without_task(line.substr(kUnified.size())), kCgroups, kAsShown,
                    kCgroups)
      .has_value();
}

}  // namespace

void add_own_cgroup(RootSetup& root) {
  if (::access(kCgroups, F_OK) != 0) return;
  const UniqueFd file(::open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC));
  const auto text = read_file(file.get(), 1 << 16);
  const auto lines = split(text ? *text : std::string_view(), '\n');
  const auto is_all = [&](std::string_view line) { return add_unified(root, line); };
  if (std::ranges::none_of(lines, is_all)) {
    add_tmpfs(root, kCgroups, TaskMessage::source_no_exec, kCgroupRoom, {}, kCgroups);
    for (const std::string_view line : lines) add_hierarchy(root, line);
  }
  added_for(root, "--container-unshare=cgroup");
}

// --- own dev ---

namespace {

constexpr std::uint64_t kDevRoom = 1 << 20;  // bytes: holds mount targets and links only

/// Adds a device node; skips nodes that the host does not have.
void add_node(RootSetup& root, const std::string& path) {
  [[maybe_unused]] const auto added = add_source(root, path, path, 0, path);
}

/// Returns whether MPI or NCCL opens the device: network adapters, and modules that copy memory
/// between processes or from GPUs.
bool is_of_fabric(std::string_view name) {
  constexpr std::string_view kKinds[] = {"cxi", "hfi1", "xpmem", "knem", "gdrdrv"};
  return std::ranges::any_of(kKinds, [&](std::string_view kind) { return name.starts_with(kind); });
}

void add_fabric(RootSetup& root) {
  for (DirectoryReader entries("/dev"); entries.next();) {
    if (entries.type() == DT_CHR && is_of_fabric(entries.name()))
      add_node(root, std::string("/dev/") + entries.c_name());
  }
  for (DirectoryReader entries("/dev/infiniband"); entries.next();) {
    if (entries.type() == DT_CHR)
      add_node(root, std::string("/dev/infiniband/") + entries.c_name());
  }
}

/// Adds /dev/console as docker does: the terminal of `srun --pty`.
void add_console(RootSetup& root) {
  char terminal[64];
  if (::ttyname_r(STDIN_FILENO, terminal, sizeof terminal) != 0) return;
  [[maybe_unused]] const auto added = add_source(root, terminal, "/dev/console", 0, "/dev/console");
}

}  // namespace

void add_own_dev(RootSetup& root, const LaunchRequest& request) {
  add_tmpfs(root, "/dev", TaskMessage::source_no_exec, kDevRoom, {}, "/dev");
  for (const char* node :
       {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}) {
    add_node(root, node);
  }
  add_tmpfs(root, "/dev/pts", TaskMessage::source_terminals, 0, {},
            "/dev/pts");  // the node's /dev/pts may lack ptmx
  add_console(root);
  const bool own_memory = (request.namespaces & own_ipc) != 0;
  // Private containers of a step share memory, as MPI requires.
  if (request.private_layer && !own_memory) {
    add_node(root, "/dev/shm");
  } else {
    add_tmpfs(root, "/dev/shm", 0, 0, 01777, "/dev/shm");
  }
  if (request.gpu.value_or(true)) {
    for (const std::string& node : request.granted_devices.value_or(granted_gpu_nodes()))
      add_node(root, node);
  }
  add_fabric(root);
  if (!request.contain) {
    for (const char* node : {"/dev/hugepages", "/dev/log"}) add_node(root, node);
  }
  root.dev_targets = root.mounts.size();
  added_for(root, request.contain ? "--container-contain" : "--container-unshare=ipc");
}

bool has_target(const RootSetup& root, const std::string& path) {
  return std::ranges::any_of(root.mounts, [&](const Mount& other) { return other.target == path; });
}

// --- security profiles ---

namespace {

/// The paths where podman looks for its default profile: containers-common(5), seccomp.json.
constexpr const char* kDefaultProfiles[] = {"/etc/containers/seccomp.json",
                                            "/usr/share/containers/seccomp.json"};
constexpr std::size_t kMostProfile = 1 << 20;

Result<UniqueFd> open_profile(const std::string& name) {
  const auto open = [](const char* path) {
    return UniqueFd(::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  };
  if (name != "default") {
    UniqueFd file = open(name.c_str());
    if (!file)
      return Error::from_errno(errno, "open " + in_quotes(name))
          .hint("it must exist on every node of the step");
    return file;
  }
  for (const char* path : kDefaultProfiles) {
    if (UniqueFd file = open(path)) return file;
  }
  return Error::from_errno(errno, "open " + in_quotes(kDefaultProfiles[1]))
      .hint("the package containers-common has it; or name a profile of your own");
}

Result<std::string> program_of(const std::string& name, const SeccompSubject& subject) {
  const UniqueFd file = SPC_TRY(open_profile(name));
  const std::string text = SPC_TRY_DURING(in_quotes(name), read_file(file.get(), kMostProfile));
  return SPC_TRY_DURING(in_quotes(name), compile_seccomp_profile(text, subject));
}

}  // namespace

Result<TaskSecurity> read_security(const LaunchRequest& request, const SitePolicy& site,
                                   bool remapped) {
  TaskSecurity security;
  const SeccompSubject subject{.has_capabilities = remapped};
  const std::string& asked = request.seccomp;
  if (site.seccomp != "off") {
    security.programs.push_back(
        SPC_TRY_DURING("seccomp profile of the site", program_of(site.seccomp, subject)));
  }
  if (!asked.empty() && asked != site.seccomp) {
    security.programs.push_back(SPC_TRY_DURING("--container-security", program_of(asked, subject)));
  }
  security.asked = asked;
  if (has_security_module(SecurityModule::apparmor)) security.apparmor = site.apparmor_profile;
  if (has_security_module(SecurityModule::selinux)) security.selinux = site.selinux_label;
  return security;
}

// --- host side ---

Result<void> add_source(RootSetup& root, const std::string& source, const std::string& target,
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
  root.mounts.push_back({.source = std::move(path),
                         .flags = flags,
                         .target = target,
                         .directory = S_ISDIR(status.st_mode),
                         .shown_as = shown_as});
  return {};
}

void add_tmpfs(RootSetup& root, const std::string& target, std::uint32_t flags, std::uint64_t size,
               std::optional<unsigned> mode, const std::string& shown_as) {
  root.mounts.push_back({.flags = flags | TaskMessage::source_tmpfs,
                         .size = size,
                         .target = target,
                         .directory = true,
                         .shown_as = shown_as,
                         .mode = mode});
}

namespace {

Result<void> add_bind(RootSetup& root, const MountSpec& mount) {
  SPC_TRY(add_source(root, mount.source, mount.target, mount.flags, mount.shown_as));
  const bool directory = root.mounts.back().directory;
  if (mount.create == MountSpec::Create::as_source ||
      directory == (mount.create == MountSpec::Create::directory))
    return {};
  root.mounts.pop_back();
  return Error(ErrorKind::invalid,
               formatted("mount {}: the source is {}", in_quotes(mount.shown_as),
                         directory ? "a directory" : "a file"))
      .hint("without x-create the target has the type of the source");
}

Result<void> add_squashfs(RootSetup& root, const MountSpec& mount) {
  auto file = SPC_TRY(open_data_file(mount.source));
  SPC_TRY_DURING("open mount source " + in_quotes(mount.source), refuse_fuse(file.get()));
  root.mounts.push_back({.source = std::move(file),
                         .flags = mount.flags | TaskMessage::source_squashfs,
                         .target = mount.target,
                         .directory = true,
                         .shown_as = mount.shown_as});
  return {};
}

/// Adds a requested mount. `most`: the site's size limit of a tmpfs.
Result<void> add_mount(RootSetup& root, const MountSpec& mount,
                       const std::map<std::string, std::string>& environment,
                       const std::string& most) {
  switch (mount.kind) {
    case MountSpec::Kind::bind: return add_bind(root, mount);
    case MountSpec::Kind::squashfs: return add_squashfs(root, mount);
    case MountSpec::Kind::removal:
      root.removals.push_back({mount.target, root.mounts.size(), mount.optional, mount.shown_as});
      return {};
    case MountSpec::Kind::tmpfs: break;
  }
  std::uint64_t size = 0;
  if (mount.size) {
    size = SPC_TRY_DURING("mount " + in_quotes(mount.shown_as),
                          bytes_of(*mount.size, memory_of_job(environment), most));
  }
  add_tmpfs(root, mount.target, mount.flags, size, mount.mode, mount.shown_as);
  root.mounts.back().inodes = mount.inodes;
  return {};
}

/// Adds the host's files for name resolution. A host may lack any of them.
Result<void> add_host_files(RootSetup& root) {
  for (const char* file : {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}) {
    if (::access(file, R_OK) != 0) continue;
    SPC_TRY(add_source(root, file, file, 0, file));
    root.mounts.back().optional = true;
  }
  return {};
}

/// Adds the mounts of --container-slurm.
Result<void> add_slurm_client(RootSetup& root,
                              const std::map<std::string, std::string>& environment) {
  SlurmClient client = find_slurm_client(environment);
  if (!client.why_not.empty())
    return Error(ErrorKind::not_found, "find Slurm's commands: " + client.why_not);
  for (const auto& [source, target] : client.binds) {
    SPC_TRY(add_source(root, source, target, TaskMessage::source_read_only, target));
  }
  root.system_users = std::move(client.passwd_entries);
  root.files.push_back({kSlurmTable, std::move(client.table)});
  return {};
}

}  // namespace

void added_for(RootSetup& root, const std::string& whom) {
  for (Mount& mount : root.mounts) {
    if (mount.asked_by.empty()) mount.asked_by = whom;
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
        .hint("ask the administrator: getent passwd must know the user on the node");
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

namespace {

/// Warns once for a step of a request that has no effect on any node.
void warn_once(const std::map<std::string, std::string>& environment, Log& log,
               std::string_view line) {
  const auto node = environment.find("SLURM_NODEID");
  if (node == environment.end() || node->second == "0") log.write(LogLevel::warning, line);
}

}  // namespace

void warn_of_idle_keys(const SitePolicy& site,
                       const std::map<std::string, std::string>& environment, Log& log) {
  const bool has_profile = !site.apparmor_profile.empty();
  const bool has_label = !site.selinux_label.empty();
  const bool counts = (has_profile && has_security_module(SecurityModule::apparmor)) ||
                      (has_label && has_security_module(SecurityModule::selinux));
  if (counts || (!has_profile && !has_label)) return;
  warn_once(environment, log,
            formatted("{} of config.toml has no effect: this node runs {}",
                      has_profile ? "apparmor_profile" : "selinux_label",
                      has_profile && has_label ? "neither AppArmor nor SELinux"
                      : has_profile            ? "no AppArmor"
                                               : "no SELinux"));
}

Result<RootSetup> gather(const LaunchRequest& request, const std::string& home,
                         const std::map<std::string, std::string>& environment, Log& log,
                         ContainerState state,
                         const std::function<Result<void>(RootSetup&)>& before_mounts) {
  RootSetup root;
  const bool is_new = state == ContainerState::is_new;
  if (is_new && (request.contain || (request.namespaces & own_ipc) != 0))
    add_own_dev(root, request);
  if (is_new && (request.namespaces & own_cgroup) != 0) add_own_cgroup(root);
  if (is_new) SPC_TRY(add_host_files(root));
  added_for(root, "every container");
  if (request.contain) {
    if (check_home(home, true)) add_tmpfs(root, home, 0, 0, {}, home);
  } else if (!home.empty()) {
    SPC_TRY_DURING("--container-mount-home", add_source(root, home, home, 0, home));
  }
  added_for(root, request.contain ? "--container-contain" : "--container-mount-home");
  if (!request.batch_script.empty()) {
    SPC_TRY(add_source(root, request.batch_script, request.batch_script,
                       TaskMessage::source_read_only, request.batch_script));
  }
  added_for(root, "batch script");
  if (request.slurm.value_or(false))
    SPC_TRY_DURING("--container-slurm", add_slurm_client(root, environment));
  added_for(root, "--container-slurm");
  if (!request.command.empty() && request.command[0] == kOwnProgram) {
    SPC_TRY(add_source(root, own_program("container-helper"),
                       std::string(kSlurmStubs) + "/" + kOwnProgram, TaskMessage::source_read_only,
                       kOwnProgram));
  }
  added_for(root, kOwnProgram);
  if (before_mounts) SPC_TRY(before_mounts(root));
  const auto has_idle = [](const MountSpec& mount) { return !mount.idle_flag.empty(); };
  if (const auto idle = std::ranges::find_if(request.mounts, has_idle);
      idle != request.mounts.end()) {
    warn_once(
        environment, log,
        formatted("{}: {}: {} has no effect: the host does not see mounts made in a container",
                  idle->origin, in_quotes(idle->shown_as), idle->idle_flag));
  }
  for (const MountSpec& mount : request.mounts) {
    auto added = add_mount(root, mount, environment, request.max_tmpfs_size);
    if (added && mount.kind != MountSpec::Kind::removal)
      root.mounts.back().by_user = !mount.by_site;
    const bool has_source =
        mount.kind == MountSpec::Kind::bind || mount.kind == MountSpec::Kind::squashfs;
    if (added && has_source && !mount.by_site) {
      SPC_TRY_DURING(mount.origin, check_mount_source(root.mounts.back().source.get(), mount.source,
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
    if (!added && mount.by_site)
      return for_administrator(std::move(added).error().during(mount.origin));
    SPC_TRY_DURING(mount.origin, std::move(added));
    added_for(root, mount.origin);
  }
  return root;
}

void add_display(RootSetup& root, const std::map<std::string, std::string>& job_environment) {
  const auto display = job_environment.find("DISPLAY");
  const auto authority = job_environment.find("XAUTHORITY");
  if (display == job_environment.end() || authority == job_environment.end() ||
      !authority->second.starts_with('/'))
    return;
  const std::string& path = authority->second;
  // Accept only Slurm's names for the file: one of this job or, with home_xauthority, the user's
  // own.
  if (path.find("/.Xauthority-") == std::string::npos && !path.ends_with("/.Xauthority")) return;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid())
    return;
  // A failure is no reason to refuse the step: programs then report that they may not use the
  // display.
  if (add_source(root, path, path, TaskMessage::source_read_only, path))
    root.mounts.back().optional = true;
  added_for(root, "srun --x11");
}

void move_mount_target(RootSetup& root, const std::string& from, const std::string& to) {
  for (Mount& mount : root.mounts) {
    if (mount.target == from) mount.target = to;
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
