// The hooks for fabric adapters, NCCL and SHARP: choice of adapters, warnings, and settings.

#include "hooks/fabric/fabric.hpp"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/hook.hpp"
#include "hooks/libraries/libraries.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {

// --- choice ---

namespace {

bool is_mellanox(const FabricDevice& device) {
  return device.provider == "mlx4" || device.provider == "mlx5";
}
bool is_any(const FabricDevice&) { return true; }

/// Returns whether the job's word names the adapter. `number`: its index among the adapters that
/// the variable applies to.
bool is_called(const FabricDevice& device, std::size_t number, std::string_view word) {
  return word == std::to_string(number) || word == device.name ||
         (!word.empty() && word == device.pci_address);
}

bool fits_pattern(const FabricDevice& device, const std::string& pattern) {
  return ::fnmatch(pattern.c_str(), device.name.c_str(), 0) == 0 ||
         (!device.pci_address.empty() &&
          ::fnmatch(pattern.c_str(), device.pci_address.c_str(), 0) == 0);
}

/// Deselects the adapters of `kind` that the variable does not name.
Result<void> obey(const HookContext& context, const char* variable,
                  bool (*kind)(const FabricDevice&), std::vector<FabricAdapter>& adapters) {
  const std::string* value = context.of_job(variable);
  if (value == nullptr || value->empty() || *value == "all" || *value == "void") return {};
  std::vector<FabricAdapter*> candidates;
  for (FabricAdapter& adapter : adapters) {
    if (kind(adapter.device)) candidates.push_back(&adapter);
  }
  std::set<const FabricAdapter*> named;
  for (std::string_view rest = *value == "none" ? std::string_view() : *value; !rest.empty();) {
    const std::string_view word = next_part(rest, ',');
    std::size_t number = 0;
    while (number < candidates.size() && !is_called(candidates[number]->device, number, word))
      ++number;
    if (number == candidates.size()) {
      return Error(ErrorKind::invalid,
                   formatted("{}: no adapter {} on this node", variable, in_quotes(word)))
          .hint("use indices, names such as mlx5_0, PCI addresses, all or none");
    }
    named.insert(candidates[number]);
  }
  for (FabricAdapter* adapter : candidates) {
    if (!named.contains(adapter)) adapter->chosen = false;
  }
  return {};
}

}  // namespace

Result<std::vector<FabricAdapter>> choose_adapters(const HookContext& context,
                                                   std::vector<FabricDevice> devices) {
  std::vector<FabricAdapter> adapters;
  const auto of_site = context.settings_of("fabric_devices");
  for (FabricDevice& device : devices) {
    const bool allowed =
        of_site.empty() || std::ranges::any_of(of_site, [&](const std::string& pattern) {
          return fits_pattern(device, pattern);
        });
    adapters.push_back({std::move(device), allowed, !allowed});
  }
  SPC_TRY(obey(context, "MELLANOX_VISIBLE_DEVICES", is_mellanox, adapters));
  SPC_TRY(obey(context, "FABRIC_VISIBLE_DEVICES", is_any, adapters));
  return adapters;
}

// --- fabric ---

namespace {

/// Bytes of locked memory that queues and buffers of an adapter need.
constexpr rlim_t kEnoughLocked = rlim_t{1} << 30;
/// Size of /dev/shm in other container engines, which is too small for the ranks of a node.
constexpr std::uint64_t kTooLittleShared = std::uint64_t{64} << 20;

/// A program of this many tasks has as many connections, and each connection needs a few files.
constexpr std::uint32_t kLargeStep = 256;
constexpr rlim_t kEnoughFiles = 65536;

/// Adapters of the node that the job has chosen.
struct FoundAdapters : HostFindings {
  std::vector<FabricDevice> usable;
  /// reasons why other adapters are not usable, where the site has to act
  std::vector<std::string> faults;
  std::vector<OfferedLibrary> libraries;
  rlim_t locked = 0;  ///< the hard limit in bytes
};

rlimit limit_of(__rlimit_resource resource) {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(resource, &limit);
  return limit;
}

bool is_required(const HookContext& context) {
  return context.setting("fabric", "auto") == "require";
}

std::string adapter_names(const std::vector<FabricDevice>& devices) {
  std::string text;
  for (const FabricDevice& device : devices) {
    text += (text.empty() ? "" : ", ") + device.name;
    if (!device.link_layer.empty()) text += formatted(" ({})", device.link_layer);
  }
  return text;
}

std::string size_of(rlim_t bytes) {
  if (bytes == RLIM_INFINITY) return "unlimited";
  return bytes % (1 << 20) == 0 ? std::to_string(bytes >> 20) + " MiB"
                                : std::to_string(bytes >> 10) + " KiB";
}

std::string too_little_locked(rlim_t bytes) {
  return formatted(
      "only {} of memory can be locked, too little for the fabric"
      " (hint: set LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in "
      "slurm.conf)",
      size_of(bytes));
}

/// Separates the usable adapters from the faults of others.
FoundAdapters sort_out(const HookContext& context, const std::vector<FabricAdapter>& adapters) {
  FoundAdapters found;
  for (const auto& [device, chosen, withheld] : adapters) {
    if (!chosen) continue;
    if (device.node.empty()) {
      const char* where = "/dev/infiniband (hint: load the module ib_uverbs)";
      if (device.kind == FabricDevice::Kind::omni_path) where = "/dev (hint: load the module hfi1)";
      if (device.kind == FabricDevice::Kind::slingshot) where = "/dev (hint: load cxi_user)";
      found.faults.push_back(formatted("{} has no device node in {}", device.name, where));
    } else if (!context.may_open(device.node)) {
      found.faults.push_back(
          device.node + " is not accessible (hint: check its mode and the step's device cgroup)");
    } else {
      found.usable.push_back(device);
    }
  }
  return found;
}

std::string why_none(const std::vector<FabricAdapter>& adapters, const FoundAdapters& found) {
  if (adapters.empty()) return "the node has no fabric adapter";
  if (std::ranges::all_of(adapters, &FabricAdapter::withheld))
    return "fabric_devices of the site names none of the node's adapters";
  if (found.faults.empty()) return "the job selects none of the node's adapters";
  std::string text;
  for (const std::string& fault : found.faults) text += (text.empty() ? "" : "; ") + fault;
  return text;
}

void note_helpers(const HookContext& context, Edits& edits) {
  for (const char* node : {"/dev/xpmem", "/dev/knem"}) {
    if (::access((context.host_root + node).c_str(), F_OK) == 0)
      edits.notes.push_back(std::string(node) +
                            (context.may_open(node) ? " is usable" : " is not accessible"));
  }
}

/// Reports a node with NVLink switches whose manager does not run: without it CUDA fails, not only
/// the fabric. This is no warning, because a manager in a container of its own cannot be detected
/// here.
void check_switches(const HookContext& context, Edits& edits) {
  if (::access((context.host_root + "/dev/nvidia-nvswitchctl").c_str(), F_OK) != 0 ||
      !fabric_manager_trace(context.host_root).empty())
    return;
  edits.notes.emplace_back(
      "the node has NVLink switches, and nothing of a running fabric manager was found: without "
      "one CUDA fails with 802, system "
      "not yet initialized");
}

/// Denies the nodes of adapters that are not chosen, and the connection manager if none is chosen.
void deny_others(const std::vector<FabricAdapter>& adapters, Edits& edits) {
  auto& denied = edits.denied_devices;
  for (const auto& [device, chosen, withheld] : adapters) {
    if (chosen) continue;
    denied.insert(denied.end(), device.others.begin(), device.others.end());
    if (!device.node.empty()) denied.push_back(device.node);
  }
  if (!denied.empty() && std::ranges::none_of(adapters, &FabricAdapter::chosen))
    denied.emplace_back("/dev/infiniband/rdma_cm");
}

/// Raises the limit of open files for a large step.
void raise_files(const StepSize& step, Edits& edits) {
  if (step.tasks >= kLargeStep && limit_of(RLIMIT_NOFILE).rlim_cur < kEnoughFiles)
    edits.limits.push_back({"nofile", kEnoughFiles});
}

Result<Edits> adapters_of_the_node(const HookContext& context) {
  Edits edits;
  const auto adapters = SPC_TRY(choose_adapters(context, fabric_devices(context)));
  deny_others(adapters, edits);
  auto found = std::make_shared<FoundAdapters>(sort_out(context, adapters));
  found->locked = limit_of(RLIMIT_MEMLOCK).rlim_max;

  const StepSize step = StepSize::of(context);
  found->libraries = offer_fabric_libraries(context, edits);
  note_helpers(context, edits);
  raise_files(step, edits);
  if (step.gpus > 0) check_switches(context, edits);
  if (!found->usable.empty()) {
    edits.limits.push_back({"memlock", UINT64_MAX});
  } else {
    const std::string why = why_none(adapters, *found);
    edits.notes.push_back("TCP: " + why);
    if (is_required(context) && step.nodes > 1)
      edits.refusal = "the site requires the fabric: " + why;
  }
  edits.found = std::move(found);
  return edits;
}

/// Returns the plugin that the image lacks. NCCL reaches adapters without InfiniBand or Ethernet
/// link layer only through a plugin for libfabric.
std::string lacking_for_nccl(const LibrariesInside& libraries) {
  if (!libraries.uses_nccl()) return {};
  for (const char* plugin :
       {"libnccl-net.so", "libnccl-net-ofi.so", "libnccl-net-aws-ofi.so", "librccl-net.so"}) {
    if (libraries.have(plugin)) return {};
  }
  return "the image has NCCL, but not its plugin for libfabric, libnccl-net.so (for RCCL, "
         "librccl-net.so)"
         " (hint: use an image with aws-ofi-nccl, or the site can add it to fabric_libraries)";
}

std::string lacking_for_verbs(const FabricDevice& device, const LibrariesInside& libraries) {
  if (!libraries.have("libibverbs.so.1")) {
    return "the image has no libibverbs.so.1"
           " (hint: install libibverbs1 and ibverbs-providers on Debian, libibverbs on "
           "Red Hat)";
  }
  if (device.provider.empty() || libraries.have_provider(device.provider)) return {};
  return formatted(
      "the image's libibverbs has no provider for {}"
      " (hint: install ibverbs-providers on Debian, libibverbs on Red Hat)",
      device.provider);
}

std::string lacking_for(const FabricDevice& device, const LibrariesInside& libraries) {
  constexpr char kSite[] = " (hint: the site can add the node's to fabric_libraries)";
  const bool has_libfabric = libraries.have("libfabric.so.1");
  switch (device.kind) {
    case FabricDevice::Kind::verbs: return lacking_for_verbs(device, libraries);
    case FabricDevice::Kind::efa:
      return has_libfabric
                 ? lacking_for_nccl(libraries)
                 : std::string("the image has no libfabric.so.1, which EFA needs") + kSite;
    case FabricDevice::Kind::omni_path:
      if (has_libfabric || libraries.have("libpsm2.so.2")) return {};
      return std::string("the image has neither libpsm2.so.2 nor libfabric.so.1") + kSite;
    case FabricDevice::Kind::slingshot: break;
  }
  if (!has_libfabric || !libraries.have("libcxi.so.1"))
    return std::string("the image has no libfabric.so.1 with libcxi.so.1") + kSite;
  return lacking_for_nccl(libraries);
}

/// Returns what the image lacks for the adapters; empty if they can be used.
std::string lacking(const std::vector<FabricDevice>& usable, const LibrariesInside& libraries) {
  std::string first;
  for (const FabricDevice& device : usable) {
    const std::string why = lacking_for(device, libraries);
    if (why.empty()) return {};
    if (first.empty()) first = why;
  }
  return first;
}

/// Returns problems with the use of the fabric, worst first; `lack`: see lacking().
std::vector<std::string> shortcomings(const FoundAdapters& found, const StepSize& step,
                                      const std::string& lack) {
  std::vector<std::string> all;
  if (!found.usable.empty() && !lack.empty()) all.push_back("the fabric is not used: " + lack);
  if (!found.usable.empty() && lack.empty() && found.locked < kEnoughLocked)
    all.push_back(too_little_locked(found.locked));
  all.insert(all.end(), found.faults.begin(), found.faults.end());
  if (const rlimit files = limit_of(RLIMIT_NOFILE);
      step.tasks >= kLargeStep && files.rlim_max < kEnoughFiles)
    all.push_back(formatted(
        "only {} open files allowed, too few for {} tasks (hint: set LimitNOFILE for slurmd)",
        files.rlim_max, step.tasks));
  return all;
}

/// Sets variables so that Intel MPI uses only the node's libfabric: the providers of its own
/// libfabric do not work with the node's.
void choose_for_intel_mpi(const HookContext& context, Edits& edits) {
  const bool is_given = std::ranges::find(edits.libraries, "libfabric.so.1",
                                          &LibraryEdit::soname) != edits.libraries.end();
  if (!is_given || context.of_image("I_MPI_ROOT") == nullptr) return;
  edits.environment.defaults["I_MPI_OFI_LIBRARY_INTERNAL"] = "0";
  edits.notes.emplace_back("Intel MPI uses the node's libfabric: I_MPI_OFI_LIBRARY_INTERNAL=0");
  const std::string* of_image = context.of_image("FI_PROVIDER_PATH");
  const std::string* of_job = context.of_job("FI_PROVIDER_PATH");
  if (of_image == nullptr || (of_job != nullptr && *of_job != *of_image)) return;
  edits.environment.unset.emplace("FI_PROVIDER_PATH");
  edits.notes.emplace_back(
      "FI_PROVIDER_PATH of the image is unset: its providers are of another libfabric");
}

Result<void> judge_with_image(const HookContext& context, Edits& edits) {
  const auto* found = edits.found_as<FoundAdapters>();
  const StepSize step = StepSize::of(context);
  if (found == nullptr) return {};
  const auto problems = give_fabric_libraries(context, found->libraries, edits);
  choose_for_intel_mpi(context, edits);
  const bool is_ordinary = found->usable.empty() && found->faults.empty() && problems.empty();
  if (is_ordinary && step.tasks < kLargeStep) return {};
  const LibrariesInside libraries(context, edits);
  const std::string lack = lacking(found->usable, libraries);
  if (!found->usable.empty()) {
    const std::string verdict =
        formatted("{}; locked memory: {}", adapter_names(found->usable), size_of(found->locked));
    edits.notes.push_back(lack.empty() ? verdict
                                       : formatted("TCP: {}; the node has {}", lack, verdict));
  }
  auto wrong = shortcomings(*found, step, lack);
  for (const std::string& problem : problems) wrong.push_back("fabric_libraries: " + problem);
  const bool falls_back =
      !found->usable.empty() && (!lack.empty() || found->locked < kEnoughLocked);
  if (is_required(context) && step.nodes > 1 && falls_back) {
    edits.refusal = "the site requires the fabric: " + wrong.front() +
                    (problems.empty() ? "" : "; " + problems.front());
  } else if (step.is_several() && !wrong.empty() && libraries.can_talk()) {
    // Programs that never use the fabric get no warning about it.
    edits.warnings.insert(edits.warnings.end(), wrong.begin(), wrong.end());
  }
  return {};
}

/// Checks /dev/shm in the first task of a node. All tasks of a node share one /dev/shm, and NCCL
/// recognises neighbours by its device number. It is the node's unless the tasks have mounted their
/// own.
Result<Edits> check_shared_memory(const HookContext& context) {
  Edits edits;
  const StepSize step = StepSize::of(context);
  const std::string* local = context.of_job("SLURM_LOCALID");
  if (!step.has_neighbours() || local == nullptr || *local != "0" || !context.open_in_image)
    return edits;
  struct statvfs shm {};
  const UniqueFd there = context.open_in_image("/dev/shm", O_RDONLY | O_DIRECTORY);
  if (!there || ::fstatvfs(there.get(), &shm) != 0) {
    edits.warnings.push_back("no /dev/shm, which the tasks on a node need to share memory");
    return edits;
  }
  const std::uint64_t size = std::uint64_t{shm.f_blocks} * shm.f_frsize;
  if (size != 0 && size <= kTooLittleShared)
    edits.warnings.push_back(
        formatted("/dev/shm has {}, too little for NCCL and MPI between the tasks on a node"
                  " (hint: without a mount of its own, it is the node's)",
                  size_of(size)));
  return edits;
}

}  // namespace

bool fabric_is_on(const HookContext& context) { return context.setting("fabric", "auto") != "off"; }

const Hook fabric_hook{.name = "99-fabric",
                       .says = "fabric adapters, their libraries and limits",
                       .when = fabric_is_on,
                       .prepare = adapters_of_the_node,
                       .create = judge_with_image,
                       .task = check_shared_memory};

// --- nccl ---

namespace {

/// Files of NCCL and RCCL (rccl, src/misc/param.cc). In both, the first line that sets a variable
/// has effect.
constexpr std::array<const char*, 2> kConfs{"/etc/nccl.conf", "/etc/rccl.conf"};
constexpr char kOfJob[] = "job ";  ///< prefix of a file that the job names
constexpr char kTopologies[] = "/var/run/nvidia-topologyd";

/// Variables with the path of a file or, for plugins, with a list of names and paths (nccl,
/// src/plugin/plugin_open.cc).
constexpr std::array<std::string_view, 9> kNamingFiles{
    "NCCL_TOPO_FILE",  "NCCL_GRAPH_FILE",   "NCCL_TUNER_CONFIG_PATH",
    "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
    "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN",   "NCCL_RMA_PLUGIN"};

/// The node's settings, the node's files that NCCL loads, and the libraries that these files need.
struct NodeSettings : HostFindings {
  std::map<std::string, std::string> confs;  ///< text, by path
  std::vector<HostLibrary> plugins;
  std::string named_in;  ///< the first file that names a plugin
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

/// Returns the files that nccl.conf names: NAME=VALUE lines with # before comments (nccl,
/// src/misc/param.cc). A plugin may be a name.
NamedFiles files_named_in(std::string_view conf, std::vector<std::string>& spaced) {
  NamedFiles files;
  while (!conf.empty()) {
    const std::string_view line = trimmed(next_part(conf, '\n'));
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || line[0] == '#') continue;
    const std::string_view name = trimmed(line.substr(0, equals));
    add_paths(name, trimmed(line.substr(equals + 1)), files);
    // NCCL treats blanks as part of the name and of the value.
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

/// Mounts a topology file of the node that the job names, as scripts for cloud virtual machines do,
/// if the image has no such file.
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

/// Reads the plugins that are libraries, and the libraries that the site adds to every container
/// beside them. Ignores files that cannot be read: NCCL itself reports them.
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

/// Checks the plugins. NCCL skips a plugin whose needs the image does not meet, and then uses TCP.
[[gnu::cold]] void check_plugins(const HookContext& context, const NodeSettings& found,
                                 Edits& edits) {
  constexpr char kList[] = "fabric_libraries";
  const bool elsewhere = context.has_bind_mounts || !context.settings_of("mounts").empty();
  const LibraryFit::Choice given = LibraryFit(context, kList, elsewhere, true).choose(found.beside);
  auto libraries = found.plugins;
  for (const HostLibrary* library : given.kept) {
    libraries.push_back(*library);
    // fallback = false: the image has it
    libraries.back().fallback = false;
  }
  const LibraryFit::Choice choice = LibraryFit(context, kList, elsewhere).choose(libraries);
  const bool is_for_all =
      StepSize::of(context).is_several() && LibrariesInside(context, edits).uses_nccl();
  for (const auto& [library, misfit] : choice.left_out) {
    if (library >= libraries.data() + found.plugins.size()) continue;  // 99-fabric reports it
    const std::string text =
        formatted("NCCL goes on without {}, which {} names: {}", in_quotes(library->source),
                  found.named_in, printable(misfit.text));
    edits.notes.push_back(text);
    // 99-fabric provides a fallback for its own libraries only.
    const char* hint = misfit.kind == Misfit::Kind::missing
                           ? " (hint: the site can add it to fabric_libraries)"
                           : hint_for(misfit);
    if (is_for_all) edits.warnings.push_back(text + hint);
  }
}

/// Reads the node's file, with all files that it names.
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

/// Adds the image's settings of variables that the node does not set: writes one file with both,
/// the node's first.
void add_settings_of_image(const HookContext& context, const NodeSettings& found, Edits& edits) {
  for (MountEdit& mount : edits.mounts) {
    const auto of_node = found.confs.find(mount.target);
    const auto of_image = of_node == found.confs.end()
                              ? std::nullopt
                              : context.image_file(mount.target.c_str(), 1 << 16);
    if (!of_image || of_image->empty()) continue;
    edits.files.push_back(
        {mount.target, formatted("{}\n# Of the image. Lines above have precedence.\n{}",
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

/// Sets the variables of SHARP, as enroot's conf/hooks/extra/50-sharp.sh.
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
