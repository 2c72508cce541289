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
     "[container] run the tasks in this image; it is fetched from its registry when the node does not have it", "IMAGE",
     [](Options& o, const std::string& value) { return set_once(o.image, "--container-image", value); }},
    {"container-name", "NAME[:auto|create|exec|no_exec|replace]",
     "[container] keep the container under this name and use it again; or JOB.STEP: join that step's", "NAME",
     [](Options& o, const std::string& value) { return set_once(o.name, "--container-name", value); }},
    {"container-mounts", "SRC[:DST[:FLAGS]][,...]",
     "[container] show a file or directory of the host inside; DST defaults to SRC; FLAGS joined by +: ro, bind, noexec, nofail, "
     "sqsh; SRC may be tmpfs (an empty directory) or umount (nothing)",
     "MOUNTS", [](Options& o, const std::string& value) { return add_once(o.mounts, "--container-mounts", value); }},
    {"container-workdir", "PATH", "[container] start in this directory of the container instead of the image's", "WORKDIR",
     [](Options& o, const std::string& value) { return set_once(o.workdir, "--container-workdir", value); }},
    {"container-env", "NAME|PATTERN|NAME=VALUE[,...]",
     "[container] these variables keep the value they have outside, where else the image's wins, or get this one", "ENV",
     [](Options& o, const std::string& value) { return add_once(o.env, "--container-env", value); }},
    {"container-pull", "newer|missing|always|never",
     "[container] when the registry is asked about an image that the node has: newer asks each time whether the tag has moved",
     "PULL", [](Options& o, const std::string& value) { return set_once(o.pull, "--container-pull", value); }},
    {"container-platform", "OS/ARCHITECTURE[/VARIANT]", "[container] take the image for this machine instead of the node's",
     "PLATFORM", [](Options& o, const std::string& value) { return set_once(o.platform, "--container-platform", value); }},
    {"container-writable", nullptr, "[container] the container's file system can be written to; changes last as long as the step",
     "WRITABLE", [](Options& o, const std::string& value) { return switch_to(o.writable, SPC_YES, kWritable, value); }},
    {"container-readonly", nullptr, "[container] the container's file system cannot be written to, except /tmp and mounts",
     "READONLY", [](Options& o, const std::string& value) { return switch_to(o.writable, SPC_NO, kWritable, value); }},
    {"container-mount-home", nullptr, "[container] show the user's home directory inside", "MOUNT_HOME",
     [](Options& o, const std::string& value) { return switch_to(o.mount_home, SPC_YES, kMountHome, value); }},
    {"no-container-mount-home", nullptr, "[container] do not show the user's home directory inside", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.mount_home, SPC_NO, kMountHome, value); }},
    {"container-save", "PATH", "[container] write the container to this file when its tasks have ended", "SAVE",
     [](Options& o, const std::string& value) {
       return value.ends_with('/') ? "--container-save: target is a directory" : set_once(o.save, "--container-save", value);
     }},
    {"container-remap-root", nullptr, "[container] be root inside: apt, dnf and pip can install; no privilege outside",
     "REMAP_ROOT", [](Options& o, const std::string& value) { return switch_to(o.remap_root, SPC_YES, kRemapRoot, value); }},
    {"no-container-remap-root", nullptr, "[container] be the user inside", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.remap_root, SPC_NO, kRemapRoot, value); }},
    {"container-entrypoint", nullptr, "[container] run the image's entrypoint before the tasks start", "ENTRYPOINT",
     [](Options& o, const std::string& value) { return switch_to(o.entrypoint, SPC_YES, kEntrypoint, value); }},
    {"no-container-entrypoint", nullptr, "[container] do not run the image's entrypoint", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.entrypoint, SPC_NO, kEntrypoint, value); }},
    {"container-entrypoint-log", nullptr, "[container] show what the entrypoint prints", "ENTRYPOINT_LOG",
     [](Options& o, const std::string& value) { return switch_on(o.entrypoint_log, "--container-entrypoint-log", value); }},
    {"container-unshare", "NS[,NS...]",
     "[container] namespaces that the container does not share with the host: net, ipc, uts, pid", "UNSHARE",
     [](Options& o, const std::string& value) { return add_once(o.unshare, "--container-unshare", value); }},
    {"container-contain", nullptr, "[container] show nothing of the user's files: home and /tmp are empty and go with the step",
     "CONTAIN", [](Options& o, const std::string& value) { return switch_on(o.contain, "--container-contain", value); }},
    {"container-tmpfs-size", "SIZE", "[container] how much can be written, in memory: bytes with K, M, G, T, or N% of the memory",
     "TMPFS_SIZE", [](Options& o, const std::string& value) { return set_once(o.tmpfs_size, "--container-tmpfs-size", value); }},
    {"container-private", nullptr, "[container] each task has a writable layer and /tmp of its own", "PRIVATE",
     [](Options& o, const std::string& value) { return switch_on(o.private_layer, "--container-private", value); }},
    {"container-slurm", nullptr, "[container] srun, squeue and the other commands of Slurm work inside", "SLURM",
     [](Options& o, const std::string& value) { return switch_on(o.slurm, "--container-slurm", value); }},
    {"container-gpu", nullptr, "[container] make the GPUs of the step work inside; so it is anyway where the step has any", "GPU",
     [](Options& o, const std::string& value) { return switch_to(o.gpu, SPC_YES, kGpu, value); }},
    {"no-container-gpu", nullptr, "[container] add no GPU's driver and files to the container", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.gpu, SPC_NO, kGpu, value); }},
    {"container-device", "VENDOR/CLASS=NAME[,...]", "[container] add these devices, as CDI files of the node describe them", "DEVICE",
     [](Options& o, const std::string& value) { return add_once(o.devices, "--container-device", value); }},
    {"container-mpi", "image|host", "[container] use the image's MPI, or put the node's in its place", "MPI",
     [](Options& o, const std::string& value) { return set_once(o.mpi, "--container-mpi", value); }},
    {"container-batch", "script|steps",
     "[container] of a batch job: script runs the script in the image, steps only what srun starts in it", "BATCH",
     [](Options& o, const std::string& value) { return set_once(o.batch, "--container-batch", value); }},
    {"container-explain", nullptr,
     "[container] say what would be executed, with mounts and variables and where they come from; run nothing", "EXPLAIN",
     [](Options& o, const std::string& value) { return switch_on(o.explain, "--container-explain", value); }},
    {"container-verbose", nullptr, "[container] say where the time of the start went", "VERBOSE",
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
