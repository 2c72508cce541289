#include "hooks/fabric/fabric.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/format.hpp"
#include "hooks/fabric/choice.hpp"
#include "hooks/fabric/libraries.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/step/step_size.hpp"

namespace spc {
namespace {

/// With less of it locked, queues and buffers of an adapter do not fit.
constexpr rlim_t kEnoughLocked = rlim_t{1} << 30;
/// What containers elsewhere have in /dev/shm, and what is too little for the ranks of a node.
constexpr std::uint64_t kTooLittleShared = std::uint64_t{64} << 20;

/// Programs of so many tasks have as many connections, and each takes a few files.
constexpr std::uint32_t kLargeStep = 256;
constexpr rlim_t kEnoughFiles = 65536;

/// What the node has of adapters that the job has chosen.
struct FoundAdapters : HostFindings {
  std::vector<FabricDevice> usable;
  std::vector<std::string>
      faults;  ///< why others are not, where somebody has to do something about it
  std::vector<OfferedLibrary> libraries;
  rlim_t locked = 0;  ///< the hard limit, bytes
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

/// Sorts the adapters into the usable ones and the faults of others.
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

/// A node with NVLink switches whose manager does not run: CUDA fails, not only the fabric. A
/// manager in a container of its own leaves no trace here, so this is no warning.
void check_switches(const HookContext& context, Edits& edits) {
  if (::access((context.host_root + "/dev/nvidia-nvswitchctl").c_str(), F_OK) != 0 ||
      !fabric_manager_trace(context.host_root).empty())
    return;
  edits.notes.emplace_back(
      "the node has NVLink switches, and nothing of a running fabric manager was found: without "
      "one CUDA fails with 802, system "
      "not yet initialized");
}

/// The nodes of adapters that are not chosen; with the last of them goes the connection manager.
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

/// Of a large step, as many files as it needs.
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

/// NCCL reaches adapters that have no InfiniBand or Ethernet link layer by a plugin for libfabric
/// only.
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

/// What the image lacks for the adapters; empty: they can be used.
std::string lacking(const std::vector<FabricDevice>& usable, const LibrariesInside& libraries) {
  std::string first;
  for (const FabricDevice& device : usable) {
    const std::string why = lacking_for(device, libraries);
    if (why.empty()) return {};
    if (first.empty()) first = why;
  }
  return first;
}

/// What is wrong with the use of the fabric, worst first; `lack`: see lacking().
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

/// Intel MPI brings a libfabric of its own with providers beside it, which do not fit into the
/// node's: it has variables to say so.
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
    // Programs that never use the fabric shall not be told that they cannot.
    edits.warnings.insert(edits.warnings.end(), wrong.begin(), wrong.end());
  }
  return {};
}

/// The tasks of a node have one /dev/shm (its device number is one of the things by which NCCL
/// knows that they are neighbours), the node's unless something of their own lies there. The first
/// of a node looks at it.
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

}  // namespace spc
