#include "options.hpp"

#include <algorithm>

namespace spank_container {
namespace {

std::string add_once(std::vector<std::string>& list, const char* option, const std::string& value) {
  if (value.empty()) return std::string(option) + ": argument required";
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  return {};
}

/// Slurm may hand over the same value twice; two values cannot both be meant.
std::string set_once(std::string& old, const char* option, const std::string& value) {
  if (value.empty()) return std::string(option) + ": argument required";
  if (!old.empty() && old != value) return std::string(option) + " specified multiple times";
  old = value;
  return {};
}

/// The two names of a choice.
struct Opposites {
  const char* yes;
  const char* no;
};
constexpr Opposites kWritable{"--container-writable", "--container-readonly"};
constexpr Opposites kMountHome{"--container-mount-home", "--no-container-mount-home"};
constexpr Opposites kRemapRoot{"--container-remap-root", "--no-container-remap-root"};
constexpr Opposites kGpu{"--container-gpu", "--no-container-gpu"};
constexpr Opposites kEntrypoint{"--container-entrypoint", "--no-container-entrypoint"};

/// `value` is empty on the command line, where the option has none, and a boolean in an environment twin.
std::string switch_to(int& old, int wanted, const Opposites& names, const std::string& value) {
  if (value == "0" || value == "false" || value == "no" || value == "n") {
    wanted = wanted == SPC_YES ? SPC_NO : SPC_YES;
  } else if (!value.empty() && value != "1" && value != "true" && value != "yes" && value != "y") {
    const char* option = wanted == SPC_YES ? names.yes : names.no;
    return std::string(option) + ": \"" + value + "\" is not a boolean (hint: 1, true, yes, 0, false or no)";
  }
  if (old != SPC_UNSET && old != wanted) return std::string("both ") + names.yes + " and " + names.no + " were specified";
  old = wanted;
  return {};
}

/// Without an opposite.
std::string switch_on(int& old, const char* option, const std::string& value) {
  return switch_to(old, SPC_YES, {option, option}, value);
}

constexpr OptionRow kTable[] = {
    {"container-image", "[USER@][REGISTRY/]NAME[:TAG][@DIGEST]",
     "[container] image to run the tasks in; pulled if the node does not have it", "IMAGE",
     [](Options& o, const std::string& value) { return set_once(o.image, "--container-image", value); }},
    {"container-name", "NAME[:auto|create|exec|no_exec|replace]",
     "[container] keep and reuse the container under this name, or join that of JOB.STEP", "NAME",
     [](Options& o, const std::string& value) { return set_once(o.name, "--container-name", value); }},
    {"container-mounts", "SRC[:DST[:FLAGS]][,...]",
     "[container] bind-mount a host path into the container; DST defaults to SRC; FLAGS joined by +: ro, bind, "
     "noexec, nofail, sqsh; or tmpfs:DST (empty directory), umount:DST (drop a mount)",
     "MOUNTS", [](Options& o, const std::string& value) { return add_once(o.mounts, "--container-mounts", value); }},
    {"container-workdir", "PATH", "[container] work directory in the container (default: the image's)", "WORKDIR",
     [](Options& o, const std::string& value) { return set_once(o.workdir, "--container-workdir", value); }},
    {"container-env", "NAME|PATTERN|NAME=VALUE[,...]",
     "[container] keep these host variables, or set NAME=VALUE (by default the image's value wins)", "ENV",
     [](Options& o, const std::string& value) { return add_once(o.env, "--container-env", value); }},
    {"container-pull", "newer|missing|always|never",
     "[container] when to query the registry for an image that the node has (default: newer, resolve the tag each time)",
     "PULL", [](Options& o, const std::string& value) { return set_once(o.pull, "--container-pull", value); }},
    {"container-platform", "OS/ARCHITECTURE[/VARIANT]", "[container] select this platform instead of the node's",
     "PLATFORM", [](Options& o, const std::string& value) { return set_once(o.platform, "--container-platform", value); }},
    {"container-writable", nullptr, "[container] make the root file system writable; changes are discarded with the step",
     "WRITABLE", [](Options& o, const std::string& value) { return switch_to(o.writable, SPC_YES, kWritable, value); }},
    {"container-readonly", nullptr, "[container] make the root file system read-only, except /tmp and mounts",
     "READONLY", [](Options& o, const std::string& value) { return switch_to(o.writable, SPC_NO, kWritable, value); }},
    {"container-mount-home", nullptr, "[container] mount the user's home directory", "MOUNT_HOME",
     [](Options& o, const std::string& value) { return switch_to(o.mount_home, SPC_YES, kMountHome, value); }},
    {"no-container-mount-home", nullptr, "[container] do not mount the user's home directory", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.mount_home, SPC_NO, kMountHome, value); }},
    {"container-save", "PATH", "[container] write the container to this file when all tasks have ended", "SAVE",
     [](Options& o, const std::string& value) {
       return value.ends_with('/') ? "--container-save: target is a directory" : set_once(o.save, "--container-save", value);
     }},
    {"container-remap-root", nullptr, "[container] run as root in a user namespace, for apt, dnf and pip",
     "REMAP_ROOT", [](Options& o, const std::string& value) { return switch_to(o.remap_root, SPC_YES, kRemapRoot, value); }},
    {"no-container-remap-root", nullptr, "[container] run as the user", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.remap_root, SPC_NO, kRemapRoot, value); }},
    {"container-entrypoint", nullptr, "[container] run the image's entrypoint before the tasks start", "ENTRYPOINT",
     [](Options& o, const std::string& value) { return switch_to(o.entrypoint, SPC_YES, kEntrypoint, value); }},
    {"no-container-entrypoint", nullptr, "[container] do not run the image's entrypoint", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.entrypoint, SPC_NO, kEntrypoint, value); }},
    {"container-entrypoint-log", nullptr, "[container] print the entrypoint's output", "ENTRYPOINT_LOG",
     [](Options& o, const std::string& value) { return switch_on(o.entrypoint_log, "--container-entrypoint-log", value); }},
    {"container-unshare", "NS[,NS...]",
     "[container] namespaces not shared with the host: net, ipc, uts, pid", "UNSHARE",
     [](Options& o, const std::string& value) { return add_once(o.unshare, "--container-unshare", value); }},
    {"container-contain", nullptr, "[container] hide the user's files: empty home and /tmp that end with the step",
     "CONTAIN", [](Options& o, const std::string& value) { return switch_on(o.contain, "--container-contain", value); }},
    {"container-tmpfs-size", "SIZE", "[container] size limit of the writable tmpfs layer: bytes with K, M, G, T, or N% of the memory",
     "TMPFS_SIZE", [](Options& o, const std::string& value) { return set_once(o.tmpfs_size, "--container-tmpfs-size", value); }},
    {"container-private", nullptr, "[container] give each task its own writable layer and /tmp", "PRIVATE",
     [](Options& o, const std::string& value) { return switch_on(o.private_layer, "--container-private", value); }},
    {"container-slurm", nullptr, "[container] make srun, squeue and other Slurm commands work in the container", "SLURM",
     [](Options& o, const std::string& value) { return switch_on(o.slurm, "--container-slurm", value); }},
    {"container-gpu", nullptr, "[container] inject the GPU driver and the step's GPUs (default when the step has GPUs)", "GPU",
     [](Options& o, const std::string& value) { return switch_to(o.gpu, SPC_YES, kGpu, value); }},
    {"no-container-gpu", nullptr, "[container] do not inject the GPU driver", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.gpu, SPC_NO, kGpu, value); }},
    {"container-device", "VENDOR/CLASS=NAME[,...]", "[container] inject these CDI devices of the node", "DEVICE",
     [](Options& o, const std::string& value) { return add_once(o.devices, "--container-device", value); }},
    {"container-mpi", "image|host", "[container] use the image's MPI, or replace it with the node's", "MPI",
     [](Options& o, const std::string& value) { return set_once(o.mpi, "--container-mpi", value); }},
    {"container-batch", "script|steps",
     "[container] run the batch script in the image, or only its steps", "BATCH",
     [](Options& o, const std::string& value) { return set_once(o.batch, "--container-batch", value); }},
    {"container-explain", nullptr,
     "[container] dry run: print command, mounts and environment with their origin", "EXPLAIN",
     [](Options& o, const std::string& value) { return switch_on(o.explain, "--container-explain", value); }},
    {"container-verbose", nullptr, "[container] print a timing breakdown of the start", "VERBOSE",
     [](Options& o, const std::string& value) { return switch_on(o.verbose, "--container-verbose", value); }},
};

/// Command line beats environment, whole option by whole option.
bool is_set(const Options& options, const std::string& twin) {
  if (twin == "IMAGE") return !options.image.empty();
  if (twin == "MOUNTS") return !options.mounts.empty();
  if (twin == "WORKDIR") return !options.workdir.empty();
  if (twin == "ENV") return !options.env.empty();
  if (twin == "PULL") return !options.pull.empty();
  if (twin == "PLATFORM") return !options.platform.empty();
  if (twin == "WRITABLE" || twin == "READONLY") return options.writable != SPC_UNSET;
  if (twin == "MOUNT_HOME") return options.mount_home != SPC_UNSET;
  if (twin == "NAME") return !options.name.empty();
  if (twin == "SAVE") return !options.save.empty();
  if (twin == "REMAP_ROOT") return options.remap_root != SPC_UNSET;
  if (twin == "ENTRYPOINT") return options.entrypoint != SPC_UNSET;
  if (twin == "ENTRYPOINT_LOG") return options.entrypoint_log != SPC_UNSET;
  if (twin == "UNSHARE") return !options.unshare.empty();
  if (twin == "CONTAIN") return options.contain != SPC_UNSET;
  if (twin == "TMPFS_SIZE") return !options.tmpfs_size.empty();
  if (twin == "PRIVATE") return options.private_layer != SPC_UNSET;
  if (twin == "SLURM") return options.slurm != SPC_UNSET;
  if (twin == "GPU") return options.gpu != SPC_UNSET;
  if (twin == "DEVICE") return !options.devices.empty();
  if (twin == "MPI") return !options.mpi.empty();
  if (twin == "BATCH") return !options.batch.empty();
  if (twin == "EXPLAIN") return options.explain != SPC_UNSET;
  if (twin == "VERBOSE") return options.verbose != SPC_UNSET;
  return false;
}

}  // namespace

std::span<const OptionRow> option_table() { return kTable; }

std::string apply_given(Options& options, std::span<const GivenOption> given) {
  for (const GivenOption& option : given) {
    if (auto refused = kTable[option.row].apply(options, option.value); !refused.empty()) return refused;
  }
  return {};
}

std::string apply_twins(Options& options, GetVariable get, void* arg) {
  for (const OptionRow& row : kTable) {
    if (row.twin == nullptr || is_set(options, row.twin)) continue;
    for (const char* prefix : {"SCONTAINER_", "PYXIS_CONTAINER_"}) {
      const std::string name = std::string(prefix) + row.twin;
      std::string value;
      if (!get(name.c_str(), value, arg)) continue;
      if (auto refused = row.apply(options, value); !refused.empty()) return name + ": " + refused;
      break;
    }
  }
  return {};
}

}  // namespace spank_container
