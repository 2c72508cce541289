#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/fabric/fabric.hpp"
#include "hooks/fabric/libraries.hpp"
#include "hooks/libraries/library_fit.hpp"
#include "hooks/step/step_size.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

/// NCCL's and RCCL's (rccl, src/misc/param.cc). Of both, the first line that sets a variable
/// counts.
constexpr std::array<const char*, 2> kConfs{"/etc/nccl.conf", "/etc/rccl.conf"};
constexpr char kOfJob[] = "job ";  ///< before a file that the job names
constexpr char kTopologies[] = "/var/run/nvidia-topologyd";

/// Variables with the path of a file, or, of plugins, with a list of names and paths (nccl,
/// src/plugin/plugin_open.cc).
constexpr std::array<std::string_view, 9> kNamingFiles{
    "NCCL_TOPO_FILE",  "NCCL_GRAPH_FILE",   "NCCL_TUNER_CONFIG_PATH",
    "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
    "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN",   "NCCL_RMA_PLUGIN"};

/// The node's settings, what NCCL loads of the node, and what is given beside it.
struct NodeSettings : HostFindings {
  std::map<std::string, std::string> confs;  ///< text, by path
  std::vector<HostLibrary> plugins;
  std::string named_in;  ///< the first file that names one
  std::vector<HostLibrary> beside;
};

bool is_plugin(std::string_view variable) { return variable.ends_with("_PLUGIN"); }

/// Paths in nccl.conf, each once.
struct NamedFiles {
  std::vector<std::string> all;
  std::vector<std::string> plugins;
};

void add_paths(std::string_view name, std::string_view value, NamedFiles& files) {
  if (std::ranges::find(kNamingFiles, name) == kNamingFiles.end()) return;
  for (const std::string& part :
       is_plugin(name) ? parts_of(value) : std::vector<std::string>{std::string(value)}) {
    if (!part.starts_with('/') || std::ranges::find(files.all, part) != files.all.end()) continue;
    files.all.push_back(part);
    if (is_plugin(name)) files.plugins.push_back(part);
  }
}

/// The files that nccl.conf wants read: NAME=VALUE lines with # before comments (nccl,
/// src/misc/param.cc). A plugin may be a name.
NamedFiles files_named_in(std::string_view conf, std::vector<std::string>& spaced) {
  NamedFiles files;
  while (!conf.empty()) {
    const std::string_view line = trimmed(conf.substr(0, conf.find('\n')));
    conf.remove_prefix(std::min(conf.find('\n'), conf.size() - 1) + 1);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || line[0] == '#') continue;
    const std::string_view name = trimmed(line.substr(0, equals));
    add_paths(name, trimmed(line.substr(equals + 1)), files);
    // NCCL takes the blanks as part of the name and of the value.
    if (name.starts_with("NCCL_") &&
        (name.size() != equals || line.substr(equals + 1).starts_with(' ')))
      spaced.emplace_back(name);
  }
  return files;
}

MountEdit at_the_same_place(const std::string& path) {
  MountEdit mount;
  mount.source = mount.target = path;
  mount.optional = true;
  return mount;
}

/// A topology that the job names, as scripts for virtual machines of clouds do: the node's file,
/// where the image has none.
void files_of_job(const HookContext& context, Edits& edits) {
  NamedFiles files;
  for (const std::string_view name : {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"}) {
    if (const std::string* value = context.of_job(name)) add_paths(name, *value, files);
  }
  for (const std::string& file : files.all) {
    if (::access((context.host_root + file).c_str(), R_OK) != 0) continue;
    edits.mounts.push_back(at_the_same_place(file));
    edits.remembered[kOfJob + file] = file;
  }
}

/// The plugins that are libraries, and what the site gives every container beside them. NCCL itself
/// says what is wrong with others.
[[gnu::cold]] void read_plugins(const HookContext& context, const std::vector<std::string>& paths,
                                NodeSettings& found) {
  const auto read = [&](const std::string& path, std::vector<HostLibrary>& libraries,
                        bool fallback) {
    if (auto library = read_fabric_library(context, path, fallback))
      libraries.push_back(*std::move(library));
  };
  for (const std::string& path : paths) read(path, found.plugins, false);
  if (found.plugins.empty()) return;
  for (const std::string& path : context.settings_of("fabric_libraries"))
    read(path, found.beside, false);
  if (found.beside.empty()) return;
  for (const std::string& path : context.settings_of("fallback_libraries"))
    read(path, found.beside, true);
}

/// A plugin whose needs the image does not meet is passed over by NCCL, which then talks over TCP.
[[gnu::cold]] void check_plugins(const HookContext& context, const NodeSettings& found,
                                 Edits& edits) {
  constexpr char kList[] = "fabric_libraries";
  const bool elsewhere = context.has_bind_mounts || !context.settings_of("mounts").empty();
  const LibraryFit::Choice given = LibraryFit(context, kList, elsewhere, true).choose(found.beside);
  auto libraries = found.plugins;
  for (const HostLibrary* library : given.kept) {
    libraries.push_back(*library);
    libraries.back().fallback = false;  // it is there
  }
  const LibraryFit::Choice choice = LibraryFit(context, kList, elsewhere).choose(libraries);
  const bool is_for_all =
      StepSize::of(context).is_several() && LibrariesInside(context, edits).uses_nccl();
  for (const auto& [library, misfit] : choice.left_out) {
    if (library >= libraries.data() + found.plugins.size()) continue;  // 99-fabric says it
    const std::string text =
        formatted("NCCL goes on without {}, which {} names: {}", in_quotes(library->source),
                  found.named_in, printable(misfit.text));
    edits.notes.push_back(text);
    // 99-fabric gives a fallback to its own libraries only.
    const char* hint = misfit.kind == Misfit::Kind::missing
                           ? " (hint: the site can add it to fabric_libraries)"
                           : hint_for(misfit);
    if (is_for_all) edits.warnings.push_back(text + hint);
  }
}

/// The node's file, with all that it names.
void settings_in(const char* conf, const HookContext& context, Edits& edits, NodeSettings& found) {
  const UniqueFd file(
      ::open((context.host_root + conf).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto text = file ? read_file(file.get(), 1 << 20) : Result<std::string>(std::string());
  if (!file || !text || text->empty()) return;
  edits.mounts.push_back(at_the_same_place(conf));
  edits.notes.push_back(formatted("the node's {} is mounted", conf));
  std::vector<std::string> spaced;
  const auto files = files_named_in(*text, spaced);
  for (const std::string& name : spaced)
    edits.notes.push_back(formatted(
        "{} has blanks around its =, so NCCL ignores it (hint: NAME=VALUE in {})", name, conf));
  found.confs[conf] = *text;
  if (found.plugins.empty()) found.named_in = conf;
  read_plugins(context, files.plugins, found);
  for (const std::string& named : files.all) {
    if (::access((context.host_root + named).c_str(), R_OK) == 0) {
      edits.mounts.push_back(at_the_same_place(named));
      edits.notes.push_back(formatted("also {}, which it names", named));
    } else {
      edits.notes.push_back(named + ", which it names, cannot be read on this node");
    }
  }
}

Result<Edits> settings_of_the_node(const HookContext& context) {
  Edits edits;
  if (::access((context.host_root + kTopologies).c_str(), R_OK) == 0) {
    edits.mounts.push_back(at_the_same_place(kTopologies));
    edits.notes.push_back(formatted("the node's {} is mounted", kTopologies));
  }
  files_of_job(context, edits);
  auto found = std::make_shared<NodeSettings>();
  for (const char* conf : kConfs) settings_in(conf, context, edits, *found);
  if (!found->confs.empty()) edits.found = std::move(found);
  return edits;
}

/// An image with settings of its own keeps those that the node leaves open: one file with both, the
/// node's first.
void add_settings_of_image(const HookContext& context, const NodeSettings& found, Edits& edits) {
  for (MountEdit& mount : edits.mounts) {
    const auto of_node = found.confs.find(mount.target);
    const auto of_image = of_node == found.confs.end()
                              ? std::nullopt
                              : context.image_file(mount.target.c_str(), 1 << 16);
    if (!of_image || of_image->empty()) continue;
    edits.files.push_back(
        {mount.target, formatted("{}\n# Of the image. What is above counts more.\n{}",
                                 of_node->second, *of_image)});
    edits.notes.push_back(
        formatted("the image's {} is added to it: where both set a variable, the node's counts",
                  mount.target));
    mount.target.clear();
  }
}

Result<void> say_what_is_covered(const HookContext& context, Edits& edits) {
  for (MountEdit& mount : edits.mounts) {
    if (!edits.remembered.contains(kOfJob + mount.target)) continue;
    const bool of_image =
        context.open_in_image && context.open_in_image(mount.target.c_str(), O_PATH);
    edits.notes.push_back(formatted("{}, which the job names, is {}", mount.target,
                                    of_image ? "the image's" : "mounted"));
    if (of_image) mount.target.clear();
  }
  const auto* found = edits.found_as<NodeSettings>();
  if (found == nullptr) return {};
  add_settings_of_image(context, *found, edits);
  if (!found->plugins.empty()) check_plugins(context, *found, edits);
  return {};
}

/// enroot, conf/hooks/extra/50-sharp.sh.
Result<Edits> variables_of_sharp(const HookContext& context) {
  Edits edits;
  const std::string* network = context.of_job("SLURM_NETWORK");
  const std::string* visible = context.of_job("MELLANOX_VISIBLE_DEVICES");
  if (network == nullptr || *network != "sharp" || (visible != nullptr && *visible == "none"))
    return edits;
  auto& variables = edits.environment.defaults;
  variables["SHARP_COLL_LOCK_ON_COMM_INIT"] = "1";
  variables["SHARP_COLL_NUM_COLL_GROUP_RESOURCE_ALLOC_THRESHOLD"] = "0";
  variables["NCCL_COLLNET_ENABLE"] = "1";
  if (const std::string* nodes = context.of_job("SLURM_STEP_NUM_NODES"))
    variables["NCCL_SHARP_GROUP_SIZE_THRESH"] = *nodes;
  edits.notes.push_back(
      "--network=sharp: SHARP_COLL_*, NCCL_COLLNET_ENABLE and NCCL_SHARP_GROUP_SIZE_THRESH are "
      "set");
  return edits;
}

}  // namespace

const Hook nccl_hook{.name = "50-nccl",
                     .says = "the node's NCCL settings",
                     .when = fabric_is_on,
                     .prepare = settings_of_the_node,
                     .create = say_what_is_covered};

const Hook sharp_hook{.name = "50-sharp",
                      .says = "SHARP for jobs with --network=sharp",
                      .when = fabric_is_on,
                      .task = variables_of_sharp};

}  // namespace spc
