#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/fabric/fabric.hpp"

namespace spc {
namespace {

constexpr char kConf[] = "/etc/nccl.conf";
constexpr char kTopologies[] = "/var/run/nvidia-topologyd";

/// The files that nccl.conf wants read: NAME=VALUE lines with # before comments (nccl, src/misc/param.cc). A plugin may be a name.
std::vector<std::string> files_named_in(std::string_view conf) {
  constexpr std::array<std::string_view, 8> kNames{"NCCL_TOPO_FILE",  "NCCL_GRAPH_FILE",   "NCCL_TUNER_CONFIG_PATH",
                                                   "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
                                                   "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN"};
  std::vector<std::string> files;
  while (!conf.empty()) {
    const std::string_view line = trimmed(conf.substr(0, conf.find('\n')));
    conf.remove_prefix(std::min(conf.find('\n'), conf.size() - 1) + 1);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || line[0] == '#') continue;
    const std::string_view value = trimmed(line.substr(equals + 1));
    const bool is_path = value.starts_with('/') && std::ranges::find(kNames, trimmed(line.substr(0, equals))) != kNames.end();
    if (is_path && std::ranges::find(files, value) == files.end()) files.emplace_back(value);
  }
  return files;
}

MountEdit at_the_same_place(const std::string& path) {
  MountEdit mount;
  mount.source = mount.target = path;
  mount.optional = true;
  return mount;
}

Result<Edits> settings_of_the_node(const HookContext& context) {
  Edits edits;
  if (::access((context.host_root + kTopologies).c_str(), R_OK) == 0) {
    edits.mounts.push_back(at_the_same_place(kTopologies));
    edits.notes.push_back(formatted("the node's {} is mounted", kTopologies));
  }
  const UniqueFd file(::open((context.host_root + kConf).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto conf = file ? read_file(file.get(), 1 << 20) : Result<std::string>(std::string());
  if (!file || !conf || conf->empty()) return edits;
  edits.mounts.push_back(at_the_same_place(kConf));
  edits.notes.push_back(formatted("the node's {} is mounted", kConf));
  for (const std::string& named : files_named_in(*conf)) {
    if (::access((context.host_root + named).c_str(), R_OK) == 0) {
      edits.mounts.push_back(at_the_same_place(named));
      edits.notes.push_back(formatted("also {}, which it names", named));
    } else {
      edits.notes.push_back(named + ", which it names, cannot be read on this node");
    }
  }
  return edits;
}

Result<void> say_what_is_covered(const HookContext& context, Edits& edits) {
  const bool has_mount = std::ranges::any_of(edits.mounts, [](const MountEdit& mount) { return mount.target == kConf; });
  const auto of_image = has_mount ? context.image_file(kConf) : std::nullopt;
  if (of_image && !of_image->empty()) edits.notes.push_back("the image's is hidden: the node's is used");
  return {};
}

/// enroot, conf/hooks/extra/50-sharp.sh.
Result<Edits> variables_of_sharp(const HookContext& context) {
  Edits edits;
  const std::string* network = context.of_job("SLURM_NETWORK");
  const std::string* visible = context.of_job("MELLANOX_VISIBLE_DEVICES");
  if (network == nullptr || *network != "sharp" || (visible != nullptr && *visible == "none")) return edits;
  auto& variables = edits.environment.defaults;
  variables["SHARP_COLL_LOCK_ON_COMM_INIT"] = "1";
  variables["SHARP_COLL_NUM_COLL_GROUP_RESOURCE_ALLOC_THRESHOLD"] = "0";
  variables["NCCL_COLLNET_ENABLE"] = "1";
  if (const std::string* nodes = context.of_job("SLURM_STEP_NUM_NODES")) variables["NCCL_SHARP_GROUP_SIZE_THRESH"] = *nodes;
  edits.notes.push_back("--network=sharp: SHARP_COLL_*, NCCL_COLLNET_ENABLE and NCCL_SHARP_GROUP_SIZE_THRESH are set");
  return edits;
}

}  // namespace

const Hook nccl_hook{.name = "50-nccl",
                     .says = "the node's NCCL settings",
                     .when = fabric_is_on,
                     .prepare = settings_of_the_node,
                     .create = say_what_is_covered};

const Hook sharp_hook{
    .name = "50-sharp", .says = "SHARP for jobs with --network=sharp", .when = fabric_is_on, .task = variables_of_sharp};

}  // namespace spc
