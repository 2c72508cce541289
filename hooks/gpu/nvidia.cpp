#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "hooks/cdi/cdi.hpp"
#include "hooks/step/gpu_allocation.hpp"
#include "hooks/nvidia_driver/cuda_compat.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/node/node_files.hpp"
#include "hooks/gpu/nvidia_choice.hpp"
#include "hooks/gpu/requirement.hpp"

namespace spc {
namespace {

#if defined(__aarch64__)
constexpr char kMultiarch[] = "/usr/lib/aarch64-linux-gnu";
constexpr char kMultiarch32[] = "/usr/lib/arm-linux-gnueabihf";
constexpr std::uint16_t kMachine32 = EM_ARM;
#else
constexpr char kMultiarch[] = "/usr/lib/x86_64-linux-gnu";
constexpr char kMultiarch32[] = "/usr/lib/i386-linux-gnu";
constexpr std::uint16_t kMachine32 = EM_386;
#endif

/// Where libraries are put inside.
struct LibraryPlaces {
  std::string native = "/usr/lib64", of_32_bit = "/usr/lib";
};

LibraryPlaces places_in_image(const HookContext& context) {
  if (context.open_in_image && context.open_in_image("/etc/debian_version", O_RDONLY)) return {kMultiarch, kMultiarch32};
  return {};
}

std::string directory_of(const NvidiaLibrary& library, const LibraryPlaces& places) {
  return (library.is_32_bit ? places.of_32_bit : places.native) + (library.folder.empty() ? "" : "/" + library.folder);
}

/// A mount that may be wanted, and for what.
struct Offer {
  MountEdit mount;
  std::uint32_t uses = 0;
  const NvidiaLibrary* library = nullptr;
};

Offer file_offer(const NvidiaFile& file) {
  return {.mount = {.source = file.path, .target = file.target, .optional = true}, .uses = file.uses};
}

/// The directory by which programs reach the control daemon of MPS, where that one runs.
std::string mps_directory(const HookContext& context) {
  const std::string* named = context.of_job("CUDA_MPS_PIPE_DIRECTORY");
  const std::string directory = named != nullptr && named->starts_with('/') ? *named : "/tmp/nvidia-mps";
  struct stat status {};
  const bool runs = ::stat((context.host_root + directory + "/control").c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
  return runs ? directory : std::string();
}

/// In an order that depends on `node` alone: `create` finds its mounts by it.
std::vector<Offer> offers_of(const NvidiaNode& node, const LibraryPlaces& places) {
  const NvidiaDriver& driver = node.driver;
  std::vector<Offer> offers;
  if (!driver.versions_agree()) return offers;
  for (const NvidiaLibrary& library : driver.libraries) {
    const std::string target = directory_of(library, places) + "/" + library.file;
    offers.push_back({.mount = {.source = library.path, .target = target}, .uses = library.uses, .library = &library});
  }
  for (const auto* files : {&driver.binaries, &driver.firmware, &driver.config_files}) {
    for (const NvidiaFile& file : *files) offers.push_back(file_offer(file));
  }
  for (const NvidiaFile& socket : driver.sockets) {
    Offer offer = file_offer(socket);
    offer.mount.read_only = false;
    offer.mount.no_exec = true;
    offers.push_back(std::move(offer));
  }
  if (const std::string& mps = node.mps_directory; !mps.empty()) {
    offers.push_back(
        {.mount = {.source = mps, .target = mps, .read_only = false, .no_exec = true, .optional = true}, .uses = for_compute});
  }
  if (!driver.fs_nodes.empty()) {
    offers.push_back(
        {.mount = {.source = "/run/udev", .target = "/run/udev", .no_exec = true, .optional = true}, .uses = for_compute});
  }
  return offers;
}

bool is_wanted(const Offer& offer, std::uint32_t uses) {
  if (offer.library != nullptr && offer.library->is_32_bit && (uses & for_32_bit) == 0) return false;
  return (offer.uses & uses & for_any) != 0;
}

std::set<std::string> accessible_nodes(const HookContext& context, const NvidiaDriver& driver) {
  std::set<std::string> nodes;
  const auto ask = [&](const std::string& node) {
    if (!node.empty() && context.may_open(node)) nodes.insert(node);
  };
  for (const NvidiaGpu& gpu : driver.gpus) {
    ask(gpu.node);
    for (const std::string& node : gpu.dri) ask(node);
    for (const NvidiaMig& mig : gpu.migs) {
      ask(mig.gpu_instance_node);
      ask(mig.compute_instance_node);
    }
  }
  for (const NvidiaFile& control : driver.control_nodes) ask(control.path);
  for (const auto* list : {&driver.imex_channels, &driver.nvswitch_nodes, &driver.fs_nodes}) {
    for (const std::string& node : *list) ask(node);
  }
  ask(driver.gdrcopy_node);
  return nodes;
}

/// Why the driver's libraries cannot work; empty if they can.
std::string why_no_driver(const NvidiaDriver& driver) {
  if (driver.versions_agree()) return {};
  if (driver.version.empty()) return "the node has GPUs, but no driver of NVIDIA's";
  if (driver.library_version.empty()) {
    return "the kernel has NVIDIA's driver " + driver.version +
           ", but its libraries were not found (hint: driver_root in config.toml)";
  }
  return "NVIDIA's driver in the kernel is " + driver.version + ", but the libraries on this node are " + driver.library_version +
         " (hint: the node needs a reboot, or its driver's module to be loaded anew)";
}

bool when(const HookContext& context) {
  return wants_gpus(context) && (!context.granted_devices || granted_nvidia_gpus(context) > 0);
}

Result<Edits> prepare(const HookContext& context) {
  if (cdi_serves_gpus(context)) {
    Edits edits;
    edits.notes.emplace_back("60-cdi brings NVIDIA's GPUs");
    return edits;
  }
  if (!NodeFiles(context.host_root).exists("/dev/nvidiactl")) return Edits();
  auto node = std::make_shared<NvidiaNode>();
  node->driver = discover_nvidia(context.host_root, context.setting("driver_root"));
  const NvidiaDriver& driver = node->driver;
  node->accessible = accessible_nodes(context, driver);
  Edits edits;
  const auto can_open = [&](const NvidiaGpu& gpu) { return node->accessible.contains(gpu.node); };
  if (std::ranges::none_of(driver.gpus, can_open)) return edits;
  edits.notes = driver.notes;
  if (const std::string why = why_no_driver(driver); !why.empty()) {
    (context.gpu.value_or(false) ? edits.refusal : edits.warnings.emplace_back()) = why;
  }
  node->mps_directory = mps_directory(context);
  for (Offer& offer : offers_of(*node, {})) edits.mounts.push_back(std::move(offer.mount));
  edits.denied_devices = deniable_nodes(*node);
  edits.found = std::move(node);
  return edits;
}

/// Names that programs open, and that no soname stands for.
void add_links(const NvidiaLibrary& library, const std::string& directory, Edits& edits) {
  const std::string stem = library.file.substr(0, library.file.find(".so"));
  const auto link = [&](const std::string& name, const std::string& target) {
    edits.symlinks.push_back({directory + "/" + name, target});
  };
  if (stem == "libcuda") link("libcuda.so", "libcuda.so.1");
  if (stem == "libnvidia-opticalflow") link("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1");
  if (stem == "libGLX_nvidia") link("libGLX_indirect.so.0", library.file);
  if (stem == "libnvidia-vulkan-producer") link("libnvidia-vulkan-producer.so", library.file);
  if (stem == "libnvidia-allocator") link("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1");
  if (library.folder == "vdpau") link(stem + ".so.1", library.file);
}

void place_files(const HookContext& context, const NvidiaNode& node, std::uint32_t uses, Edits& edits) {
  const auto places = places_in_image(context);
  const auto offers = offers_of(node, places);
  for (std::size_t i = 0; i < edits.mounts.size() && i < offers.size(); ++i) {
    if (!is_wanted(offers[i], uses)) {
      edits.mounts[i].target.clear();
      continue;
    }
    edits.mounts[i].target = offers[i].mount.target;
    if (offers[i].library == nullptr) continue;
    const NvidiaLibrary& library = *offers[i].library;
    if (!library.soname.empty()) {
      edits.libraries.push_back({.soname = library.soname,
                                 .path = offers[i].mount.target,
                                 .machine = library.is_32_bit ? kMachine32 : std::uint16_t{0}});
    }
    add_links(library, directory_of(library, places), edits);
  }
}

/// Every NVIDIA_REQUIRE_* of the image, or of the job where it has the same.
std::map<std::string, std::string> requirements_of(const HookContext& context) {
  constexpr std::string_view kPrefix = "NVIDIA_REQUIRE_";
  std::map<std::string, std::string> found;
  for (const auto* variables : {&context.image, &context.job}) {
    for (const auto& [name, value] : *variables) {
      if (name.starts_with(kPrefix)) found[name] = value;
    }
  }
  return found;
}

/// 12.4 of 1204.
std::string version_text(unsigned cuda) { return std::to_string(cuda / 100) + "." + std::to_string(cuda % 100); }

void check_requirements(const HookContext& context, const NvidiaDriver& driver, bool own_libcuda, Edits& edits) {
  const std::string* off = of_job_or_image(context, "NVIDIA_DISABLE_REQUIRE");
  constexpr std::array<std::string_view, 6> kYes{"1", "t", "T", "TRUE", "true", "True"};
  if (off != nullptr && std::ranges::find(kYes, *off) != kYes.end()) return;
  RequirementFacts facts{{"driver", driver.version}};
  const unsigned cuda = cuda_version_of_driver(driver.version);
  if (cuda != 0) facts["cuda"] = version_text(cuda);
  const auto requirements = requirements_of(context);
  for (const auto& [name, requirement] : requirements) {
    const std::string condition = unsatisfied_condition(requirement, facts);
    if (condition.empty()) continue;
    edits.refusal = "unsatisfied condition: " + condition.substr(0, 200) +
                    ", please update your driver to a newer version, or use an earlier cuda container" +
                    " (hint: the driver is " + driver.version + (cuda != 0 ? ", for CUDA " + facts["cuda"] : "") +
                    "; NVIDIA_DISABLE_REQUIRE=1 starts it anyway)";
    return;
  }
  // Within a major version newer programs run with older drivers, so this is a word and no refusal.
  const std::string* made_for = context.of_image("CUDA_VERSION");
  if (made_for == nullptr || cuda == 0 || own_libcuda || requirements.contains("NVIDIA_REQUIRE_CUDA")) return;
  if (number_of(std::string_view(*made_for).substr(0, made_for->find('.'))) > static_cast<int>(cuda / 100)) {
    edits.warnings.push_back("the image is made for CUDA " + made_for->substr(0, 200) + ", the node's driver " + driver.version +
                             " is for CUDA " + facts["cuda"]);
  }
}

Result<void> create(const HookContext& context, Edits& edits) {
  if (!edits.found) return {};
  const auto& node = *static_cast<const NvidiaNode*>(edits.found.get());
  NvidiaChoice choice = choose_nvidia(context, node);
  edits.denied_devices = std::move(choice.denied);
  std::ranges::move(choice.notes, std::back_inserter(edits.notes));
  std::ranges::move(choice.warnings, std::back_inserter(edits.warnings));
  edits.refusal = choice.refusal;
  if (choice.nothing || !choice.refusal.empty()) {
    for (MountEdit& mount : edits.mounts) mount.target.clear();
    if (choice.nothing) edits.warnings.clear();
    return {};
  }
  for (std::string& path : choice.devices) edits.devices.push_back({.path = std::move(path), .source = {}, .optional = true});
  place_files(context, node, choice.uses, edits);
  if (!node.driver.versions_agree()) return {};
  CudaCompat compat;
  if ((choice.uses & for_compute) != 0) {
    compat = cuda_compat_of_image(context, node.driver.version);
    if (!compat.directory.empty()) edits.library_directories.push_back({.path = compat.directory, .before = true});
    if (!compat.reason.empty()) edits.notes.push_back(compat.reason);
    if (!node.accessible.contains("/dev/nvidia-uvm")) {
      edits.warnings.emplace_back(
          "there is no /dev/nvidia-uvm, without which CUDA cannot start (hint: on the node, modprobe nvidia-uvm)");
    }
  }
  check_requirements(context, node.driver, !compat.directory.empty(), edits);
  return {};
}

Result<Edits> task(const HookContext& context) {
  Edits edits;
  const std::size_t accessible = granted_nvidia_gpus(context);
  if (!has_mig_parts(context)) renumber_variables(context, accessible, {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}, edits);
  return edits;
}

}  // namespace

const Hook nvidia_hook{.name = "98-nvidia",
                       .says = "NVIDIA's driver and the GPUs of the step",
                       .when = when,
                       .prepare = prepare,
                       .create = create,
                       .task = task};

}  // namespace spc
