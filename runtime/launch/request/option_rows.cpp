#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/location.hpp"
#include "launch/request/device_names.hpp"
#include "launch/request/namespaces.hpp"
#include "launch/request/options.hpp"
#include "launch/request/save_path.hpp"

namespace spc {
namespace {

using Kind = ContainerOption::Kind;
using Text = const std::string&;

template <auto kMember>
Result<void> turn_on(LaunchRequest& request, Text value, ReadAt) {
  request.*kMember = value == "yes";
  return {};
}

template <auto kMember>
Result<void> turn_off(LaunchRequest& request, Text value, ReadAt) {
  request.*kMember = value != "yes";
  return {};
}

Result<void> add_mounts(LaunchRequest& request, Text value) {
  for (MountSpec& mount : SPC_TRY(parse_mounts(value))) {
    SPC_TRY(refuse_kernel_views(mount));
    const auto same = std::find(request.mounts.begin(), request.mounts.end(), mount);
    if (same == request.mounts.end()) request.mounts.push_back(std::move(mount));
  }
  return request.mounts.size() > kMaxMounts ? Result<void>(too_many_mounts()) : Result<void>();
}

/// A line of a file of variables, as docker reads it: NAME=VALUE sets, NAME alone keeps the job's
/// value, # begins a comment. What `asked` says counts more.
Result<void> add_env_line(EnvironmentWishes& wishes, const EnvironmentWishes& asked,
                          std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty() || line.starts_with('#')) return {};
  const std::string name(line.substr(0, line.find('=')));
  const auto is_odd = [](char c) { return c <= ' ' || c >= 0x7f || c == '*' || c == '?'; };
  if (name.empty() || std::any_of(name.begin(), name.end(), is_odd)) {
    return Error(ErrorKind::invalid, in_quotes(name) + " is not the name of a variable");
  }
  if (line.find('\0') != std::string_view::npos) {
    return Error(ErrorKind::invalid, formatted("the value of {} contains a NUL", in_quotes(name)));
  }
  if (asked.keeps(name) || asked.values.contains(name)) return {};
  std::erase(wishes.keep, name);
  wishes.values.erase(name);
  if (name.size() == line.size()) {
    wishes.keep.push_back(name);
  } else {
    wishes.values[name] = line.substr(name.size() + 1);
  }
  return {};
}

/// Opened by the user, on the node alone: the machine of a submission may not have the file, and
/// the container has others.
Result<void> add_env_file(LaunchRequest& request, Text path, ReadAt where) {
  if (where != ReadAt::node) return {};
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) {
    return Error::from_errno(errno, "open " + in_quotes(path))
        .hint("it must exist on every node of the step and is opened with the user's permissions");
  }
  const std::string text = SPC_TRY_DURING(in_quotes(path), read_file(file.get(), 1 << 20));
  const EnvironmentWishes asked = request.environment;
  unsigned number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    ++number;
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    SPC_TRY_DURING(formatted("{}, line {}", in_quotes(path), number),
                   add_env_line(request.environment, asked, line));
  }
  return {};
}

/// One of two words.
Result<void> choose(std::string& into, Text value, const char* one, const char* other) {
  if (value != one && value != other) {
    return Error(ErrorKind::invalid, in_quotes(value) + " is not allowed")
        .hint(formatted("{} or {}", one, other));
  }
  into = value;
  return {};
}

constexpr char kSecurityRule[] = "seccomp=default, or seccomp=FILE with an absolute path";

/// It only ever adds to what the site has.
Result<void> add_security(LaunchRequest& request, Text value, ReadAt) {
  constexpr std::string_view kSeccomp = "seccomp=";
  if (!value.starts_with(kSeccomp))
    return Error(ErrorKind::invalid, in_quotes(value) + " is not allowed").hint(kSecurityRule);
  const std::string profile = value.substr(kSeccomp.size());
  if (profile == "unconfined") {
    return Error(ErrorKind::invalid, "seccomp=unconfined is not allowed")
        .hint("without the option only the site's profile counts, which users cannot lift");
  }
  if (profile != "default" && !profile.starts_with('/')) {
    return Error(ErrorKind::invalid, in_quotes(profile) + " is not an absolute path")
        .hint(kSecurityRule);
  }
  request.seccomp = profile;
  return {};
}

constexpr ContainerOption kOptions[] = {
    {"container-image", "[USER@][REGISTRY/]NAME[:TAG][@DIGEST]",
     "[container] image to run the tasks in; pulled if the node does not have it", "IMAGE",
     Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.image = value;
       SPC_TRY(ImageLocation::parse(value));
       return {};
     }},
    {"container-name", "NAME[:auto|create|exec|no_exec|replace|remove]",
     "[container] keep and reuse the container under this name, or join that of JOB.STEP", "NAME",
     Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.name = SPC_TRY(ContainerName::parse(value));
       return {};
     }},
    {"container-mounts", "SRC[:DST[:FLAGS]][,...]",
     "[container] bind-mount a host path into the container; DST defaults to SRC; FLAGS joined by "
     "+: ro, noexec, nofail, sqsh; or tmpfs:DST (empty directory), umount:DST (drop a mount)",
     "MOUNTS", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) { return add_mounts(request, value); },
     "bind-mount a host path; FLAGS joined by +: ro, noexec"},
    {"container-workdir", "PATH",
     "[container] work directory in the container (default: the image's)", "WORKDIR", Kind::once,
     nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.workdir = value;
       return {};
     },
     "work directory in the container (default: the image's)"},
    {"container-env", "NAME|PATTERN|NAME=VALUE[,...]",
     "[container] keep these host variables, or set NAME=VALUE (by default the image's value wins)",
     "ENV", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) { return request.environment.add(value); },
     "keep these host variables, or set NAME=VALUE", "NAME[,NAME...]|NAME=VALUE"},
    {"container-env-file", "FILE",
     "[container] set the variables of this file: lines NAME=VALUE, or NAME to keep the host's "
     "value",
     "ENV_FILE", Kind::once, nullptr, add_env_file,
     "set the variables of this file: lines NAME=VALUE, or NAME to keep the host's value"},
    {"container-device", "VENDOR/CLASS=NAME[,...]",
     "[container] inject these CDI devices of the node", "DEVICE", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return add_device_names(request.devices, value);
     },
     "inject CDI devices of this machine"},
    {"container-mount-home", nullptr, "[container] mount the user's home directory", "MOUNT_HOME",
     Kind::on, "no-container-mount-home", turn_on<&LaunchRequest::mount_home>,
     "mount the home directory"},
    {"no-container-mount-home", nullptr, "[container] do not mount the user's home directory",
     nullptr, Kind::off, "container-mount-home", turn_off<&LaunchRequest::mount_home>,
     "do not mount the home directory"},
    {"container-writable", nullptr,
     "[container] make the root file system writable; changes are discarded with the step",
     "WRITABLE", Kind::on, "container-readonly", turn_on<&LaunchRequest::writable>,
     "make the root file system writable; changes are discarded at exit"},
    {"container-readonly", nullptr,
     "[container] make the root file system read-only, except /tmp and mounts", "READONLY",
     Kind::off, "container-writable", turn_off<&LaunchRequest::writable>,
     "make the root file system read-only, except /tmp and mounts"},
    {"container-pull", "newer|missing|always|never",
     "[container] when to query the registry for an image that the node has (default: newer, "
     "resolve "
     "the tag each time)",
     "PULL", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.pull = parse_pull_policy(value);
       if (request.pull) return {};
       return Error(ErrorKind::invalid, in_quotes(value) + " is not allowed").hint(kPullPolicies);
     }},
    {"container-platform", "OS/ARCHITECTURE[/VARIANT]",
     "[container] select this platform instead of the node's", "PLATFORM", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.platform = SPC_TRY(Platform::parse(value));
       return {};
     }},
    {"container-save", "PATH",
     "[container] write the container to this file when all tasks have ended", "SAVE", Kind::file,
     nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       request.save = value;
       return check_save_path(value);
     }},
    {"container-remap-root", nullptr,
     "[container] run as root in a user namespace, for apt, dnf and pip", "REMAP_ROOT", Kind::on,
     "no-container-remap-root", turn_on<&LaunchRequest::remap_root>},
    {"no-container-remap-root", nullptr, "[container] run as the user", nullptr, Kind::off,
     "container-remap-root", turn_off<&LaunchRequest::remap_root>},
    {"container-entrypoint", nullptr,
     "[container] run the image's entrypoint before the tasks start", "ENTRYPOINT", Kind::on,
     "no-container-entrypoint", turn_on<&LaunchRequest::entrypoint>},
    {"no-container-entrypoint", nullptr, "[container] do not run the image's entrypoint", nullptr,
     Kind::off, "container-entrypoint", turn_off<&LaunchRequest::entrypoint>},
    {"container-entrypoint-log", nullptr, "[container] print the entrypoint's output",
     "ENTRYPOINT_LOG", Kind::on, nullptr, turn_on<&LaunchRequest::entrypoint_log>},
    {"container-unshare", "NS[,NS...]",
     "[container] namespaces not shared with the host: net, ipc, uts, pid, cgroup", "UNSHARE",
     Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.namespaces |= SPC_TRY(parse_namespaces(value));
       return {};
     },
     "namespaces not shared with this machine: cgroup", "cgroup"},
    {"container-contain", nullptr,
     "[container] hide the user's files: empty home, /tmp and /dev/shm that end with the step; "
     "minimal /dev",
     "CONTAIN", Kind::on, nullptr, turn_on<&LaunchRequest::contain>,
     "hide the user's files: empty home and /dev/shm, discarded with the container; minimal /dev"},
    {"container-security", "seccomp=default|seccomp=FILE",
     "[container] restrict system calls to this seccomp profile; FILE as for podman and docker",
     "SECURITY", Kind::once, nullptr, add_security,
     "restrict system calls to this seccomp profile; FILE as for podman and docker"},
    {"container-tmpfs-size", "SIZE",
     "[container] size limit of the writable tmpfs layer: bytes with K, M, G, T, or N% of the "
     "memory",
     "TMPFS_SIZE", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.tmpfs_size = SPC_TRY(MemorySize::parse(value));
       return {};
     }},
    {"container-private", nullptr, "[container] give each task its own writable layer and /tmp",
     "PRIVATE", Kind::on, nullptr, turn_on<&LaunchRequest::private_layer>},
    {"container-slurm", nullptr,
     "[container] make srun, squeue and other Slurm commands work in the container", "SLURM",
     Kind::on, nullptr, turn_on<&LaunchRequest::slurm>},
    {"container-gpu", nullptr,
     "[container] inject the GPU driver and the step's GPUs (default when the step has GPUs)",
     "GPU", Kind::on, "no-container-gpu", turn_on<&LaunchRequest::gpu>,
     "inject the GPU driver and the GPUs of this machine"},
    {"no-container-gpu", nullptr, "[container] do not inject the GPU driver", nullptr, Kind::off,
     "container-gpu", turn_off<&LaunchRequest::gpu>},
    {"container-mpi", "image|host",
     "[container] use the image's MPI, or replace it with the node's", "MPI", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return choose(request.mpi, value, "image", "host");
     }},
    {"container-batch", "script|steps",
     "[container] run the batch script in the image, or only its steps", "BATCH", Kind::once,
     nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return choose(request.batch, value, "script", "steps");
     }},
    {"container-explain", nullptr,
     "[container] dry run: print command, mounts and environment with their origin", "EXPLAIN",
     Kind::on, nullptr, turn_on<&LaunchRequest::explain>},
    {"container-verbose", nullptr, "[container] print a timing breakdown of the start", "VERBOSE",
     Kind::on, nullptr, turn_on<&LaunchRequest::verbose>},
};

}  // namespace

std::span<const ContainerOption> container_options() { return kOptions; }

}  // namespace spc
