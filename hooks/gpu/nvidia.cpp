// The NVIDIA hook: mounts of the driver's files, device nodes, and why no GPU is usable.

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>

#include "base/format.hpp"
#include "base/result.hpp"
#include "hooks/cdi/cdi.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/loader/loader.hpp"
#include "hooks/node/node.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {

// --- nvidia files ---

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

/// Directories of libraries in the container.
struct LibraryPlaces {
  std::string native = "/usr/lib64", of_32_bit = "/usr/lib";
};

LibraryPlaces places_in_image(const HookContext& context) {
  if (context.open_in_image && context.open_in_image("/etc/debian_version", O_RDONLY))
    return {kMultiarch, kMultiarch32};
  return {};
}

std::string target_directory_of(const NvidiaLibrary& library, const LibraryPlaces& places) {
  return (library.is_32_bit ? places.of_32_bit : places.native) +
         (library.folder.empty() ? "" : "/" + library.folder);
}

NvidiaOffer file_offer(const NvidiaFile& file) {
  return {.mount = {.source = file.path, .target = file.target, .optional = true},
          .uses = file.uses,
          .library = {}};
}

/// Offers a socket, or a directory of sockets. It is writable, because programs write to sockets.
NvidiaOffer socket_offer(const NvidiaFile& socket) {
  NvidiaOffer offer = file_offer(socket);
  offer.mount.read_only = false;
  offer.mount.no_exec = true;
  return offer;
}

bool is_wanted(const NvidiaOffer& offer, std::uint32_t uses) {
  if (offer.library && offer.library->is_32_bit && (uses & for_32_bit) == 0) return false;
  return (offer.uses & uses & for_any) != 0;
}

/// Adds links that programs open and that are no sonames.
void add_links(const NvidiaLibrary& library, const std::string& directory, Edits& edits) {
  const std::string stem = library.file.substr(0, library.file.find(".so"));
  const auto link = [&](const std::string& name, const std::string& target) {
    edits.symlinks.push_back({directory + "/" + name, target});
  };
  // If the host has a library's unversioned name, programs open it by that name. libcuda.so is
  // opened like this on every system.
  const bool is_opened_plain =
      library.has_plain_link || stem == "libcuda" || stem == "libnvidia-opticalflow";
  if (is_opened_plain && !library.soname.empty() && library.soname != stem + ".so")
    link(stem + ".so", library.soname);
  if (stem == "libGLX_nvidia") link("libGLX_indirect.so.0", library.file);
  if (stem == "libnvidia-vulkan-producer") link("libnvidia-vulkan-producer.so", library.file);
  if (stem == "libnvidia-allocator") link("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1");
  if (library.folder == "vdpau") link(stem + ".so.1", library.file);
}

void place_library(const NvidiaLibrary& library, const LibraryPlaces& places, MountEdit& mount,
                   Edits& edits) {
  const std::string directory = target_directory_of(library, places);
  mount.target = directory + "/" + library.file;
  if (!library.soname.empty()) {
    edits.libraries.push_back({.soname = library.soname,
                               .path = mount.target,
                               .machine = library.is_32_bit ? kMachine32 : std::uint16_t{0}});
  }
  add_links(library, directory, edits);
}

}  // namespace

std::string mps_directory(const HookContext& context) {
  const std::string* named = context.of_job("CUDA_MPS_PIPE_DIRECTORY");
  const std::string directory =
      named != nullptr && named->starts_with('/') ? *named : "/tmp/nvidia-mps";
  struct stat status {};
  const bool runs = ::stat((context.host_root + directory + "/control").c_str(), &status) == 0 &&
                    S_ISSOCK(status.st_mode);
  return runs ? directory : std::string();
}

std::vector<NvidiaOffer> offers_of(const HookContext& context, const NvidiaDriver& driver) {
  std::vector<NvidiaOffer> offers;
  if (!driver.versions_agree()) return offers;
  for (const NvidiaLibrary& library : driver.libraries) {
    const std::string target = target_directory_of(library, {}) + "/" + library.file;
    offers.push_back({.mount = {.source = library.path, .target = target},
                      .uses = library.uses,
                      .library = library});
  }
  for (const auto* files : {&driver.binaries, &driver.firmware, &driver.config_files}) {
    for (const NvidiaFile& file : *files) offers.push_back(file_offer(file));
  }
  for (const NvidiaFile& socket : driver.sockets) offers.push_back(socket_offer(socket));
  if (const std::string mps = mps_directory(context); !mps.empty()) {
    offers.push_back(socket_offer({mps, mps, for_compute}));
  }
  if (!driver.fs_nodes.empty()) {
    offers.push_back(file_offer({"/run/udev", "/run/udev", for_compute}));
    offers.back().mount.no_exec = true;
  }
  return offers;
}

void place_files(const HookContext& context, const std::vector<NvidiaOffer>& offers,
                 std::uint32_t uses, Edits& edits) {
  const auto places = places_in_image(context);
  std::map<std::string_view, const NvidiaOffer*> offered;
  for (const NvidiaOffer& offer : offers) offered.emplace(offer.mount.target, &offer);
  for (MountEdit& mount : edits.mounts) {
    const auto found = offered.find(mount.target);
    if (found == offered.end()) continue;
    const NvidiaOffer& offer = *found->second;
    if (!is_wanted(offer, uses)) {
      mount.target.clear();
    } else if (offer.library) {
      place_library(*offer.library, places, mount, edits);
    }
  }
}

// --- nvidia ---

namespace {

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

/// Returns why the driver's libraries cannot work; empty if they can.
std::string why_no_driver(const NvidiaDriver& driver) {
  if (driver.versions_agree()) return {};
  if (driver.version.empty()) {
    return "the node has GPUs, but no NVIDIA driver"
           " (hint: scontainer doctor --node, and spank-container-faq(7), \"GPU without driver\")";
  }
  if (driver.library_version.empty()) {
    return formatted(
        "the kernel has NVIDIA driver {}, but its libraries were not found"
        " (hint: set driver_root in config.toml)",
        driver.version);
  }
  return formatted(
      "the NVIDIA kernel driver is {}, but the libraries on this node are {}"
      " (hint: reboot the node or reload the driver's module)",
      driver.version, driver.library_version);
}

bool has_nvidia_hardware(const NodeFiles& node) {
  if (node.exists("/proc/driver/nvidia")) return true;
  const std::string devices = "/sys/bus/pci/devices/";
  return std::ranges::any_of(node.names(devices), [&](const std::string& address) {
    return node.text(devices + address + "/vendor").starts_with("0x10de") &&
           node.text(devices + address + "/class").starts_with("0x03");
  });
}

/// Returns a node that prevents the step from using any GPU, and the errno of opening it; empty if
/// there is none.
std::optional<std::pair<std::string, int>> closed_node(const HookContext& context,
                                                       const NodeFiles& node) {
  const auto refuses = [&](const std::string& path) {
    const bool opens =
        ::faccessat(AT_FDCWD, (context.host_root + path).c_str(), R_OK | W_OK, AT_EACCESS) == 0;
    return opens ? 0 : errno;
  };
  std::vector<std::string> paths{"/dev/nvidiactl"};
  for (const std::string& name : node.names("/dev", "nvidia")) {
    if (number_behind("nvidia", name)) paths.push_back("/dev/" + name);
  }
  if (paths.size() == 1) paths.emplace_back("/dev/nvidia0");
  for (const std::string& path : paths) {
    if (const int error = refuses(path); error != 0) return std::pair(path, error);
  }
  return std::nullopt;
}

/// Returns why the step can open none of the GPUs that Slurm has allocated to it; empty on a node
/// without NVIDIA GPUs.
std::string why_none_opens(const HookContext& context) {
  const NodeFiles node(context.host_root);
  const auto closed = closed_node(context, node);
  if (!closed || !has_nvidia_hardware(node)) return {};
  const auto& [path, error] = *closed;
  const char* hint =
      "the NVIDIA driver is not loaded: on the node, as root: nvidia-modprobe -u -c0";
  if (error == EACCES)
    hint = "the user must be in its group, or the driver's option NVreg_DeviceFileMode be 0666";
  if (error == EPERM) hint = "gres.conf must name the device files that this node has";
  return formatted(
      "Slurm allocated the GPUs {}, but none can be opened: {} (hint: {}; scontainer doctor says "
      "more)",
      *list_of_slurm(context), Error::from_errno(error, path).message(), hint);
}

/// Reads the offered libraries and ICD files, which `create` cannot see.
[[gnu::cold]] void read_offers(const HookContext& context, NvidiaNode& node) {
  for (const auto& [mount, uses, library] : node.offers) {
    if (library) {
      auto elf = HostLibrary::read(context.host_root, mount.source);
      node.libraries.push_back(elf ? *std::move(elf) : HostLibrary());
      // The driver also needs libraries such as libX11, which a program may find by an RPATH.
      node.libraries.back().searches = true;
    } else if (mount.source.ends_with(".json") || mount.source.ends_with(".icd")) {
      node.icd_files.emplace_back(mount.target,
                                  NodeFiles(context.host_root).text(mount.source));
    }
  }
}

bool when(const HookContext& context) {
  if (!wants_gpus(context)) return false;
  return !context.granted_devices || granted_nvidia_gpus(context) > 0 || slurm_gave_gpus(context);
}

Result<Edits> prepare_nvidia(const HookContext& context) {
  if (cdi_serves_gpus(context)) {
    Edits edits;
    edits.notes.emplace_back("60-cdi injects NVIDIA GPUs");
    return edits;
  }
  if (context.granted_devices && granted_nvidia_gpus(context) == 0) {
    Edits edits;
    if (step_has_gpus(context)) return edits;  // GPUs of another vendor
    if (std::string why = why_none_opens(context); !why.empty())
      edits.warnings.push_back(std::move(why));
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
    if (context.gpu.value_or(false)) {
      edits.refusal = why;
    } else {
      edits.warnings.push_back(why);
    }
  }
  node->offers = offers_of(context, driver);
  read_offers(context, *node);
  node->has_mps = !mps_directory(context).empty();
  for (const NvidiaOffer& offer : node->offers) edits.mounts.push_back(offer.mount);
  edits.denied_devices = deniable_nodes(*node);
  edits.found = std::move(node);
  return edits;
}

/// Returns whether the image's only C library is musl: then its programs cannot load the injected
/// libraries.
bool has_musl_only(const HookContext& context) {
  if (!context.open_in_image) return false;
  const auto loaders = loaders_of_image(context);
  const auto is_glibc = [](const ImageLoader& loader) { return loader.glibc; };
  return !loaders.empty() && std::ranges::none_of(loaders, is_glibc);
}

/// Drops libraries of the driver that the image's glibc cannot load, and ICD files that name them:
/// programs could not start because of such a library of GL or Vulkan, even with the image's own.
/// Returns why libcuda is dropped, or an empty string. In images without glibc, drops none.
[[gnu::cold]] std::string leave_out_misfits(const HookContext& context, const NvidiaNode& node,
                                            const NvidiaChoice& choice, Edits& edits) {
  using enum Misfit::Kind;
  if (!context.open_in_image) return {};
  const auto offer_of = [&](const HostLibrary* library) -> const NvidiaOffer& {
    return node.offers[static_cast<std::size_t>(library - node.libraries.data())];
  };
  auto fitting = LibraryFit(context, "driver_root", true).choose(node.libraries);
  std::erase_if(fitting.left_out, [&](const auto& left) {
    return left.second.kind == machine || left.second.kind == no_glibc ||
           !is_wanted(offer_of(left.first), choice.uses);
  });

  const auto drop = [&](const std::string& target) {
    for (MountEdit& mount : edits.mounts) {
      if (mount.target == target) mount.target.clear();
    }
  };
  std::string why_no_libcuda;
  bool is_named = false;
  for (const auto& [library, misfit] : fitting.left_out) {
    const NvidiaOffer& offer = offer_of(library);
    const std::string why = printable(misfit.text);
    edits.notes.push_back(why + ": it is left out");
    is_named = is_named || (offer.uses != for_any && (offer.uses & choice.named & for_any) != 0);
    if (offer.library->file.starts_with("libcuda.so.") && !offer.library->is_32_bit)
      why_no_libcuda = why;
    drop(offer.mount.target);
    for (const auto& [target, text] : node.icd_files) {
      if (text.find(library->soname) != std::string::npos) drop(target);
    }
  }
  if (is_named) edits.warnings.push_back(fitting.summary() + kNewerImage);
  return why_no_libcuda;
}

/// Adds what CUDA needs in addition: the libcuda to use, and the device node of unified memory.
/// `why_no_libcuda`: why the driver's is left out. That is an error if GPUs were requested.
void prepare_cuda(const HookContext& context, const NvidiaNode& node, std::uint32_t uses,
                  const std::string& why_no_libcuda, Edits& edits) {
  CudaCompat compat;
  if ((uses & for_compute) != 0) {
    auto accessible = node.driver.gpus;
    std::erase_if(accessible,
                  [&](const NvidiaGpu& gpu) { return !node.accessible.contains(gpu.node); });
    compat =
        cuda_compat_of_image(context, node.driver.version, why_no_cuda_compat(context, accessible));
    add_compat(compat, edits);
    if (!why_no_libcuda.empty() && compat.directory.empty() &&
        (context.gpu.value_or(false) || of_job_or_image(context, "NVIDIA_VISIBLE_DEVICES")))
      edits.refusal = why_no_libcuda + ", so CUDA cannot work" + kNewerImage;
    if (!node.accessible.contains("/dev/nvidia-uvm")) {
      edits.warnings.emplace_back(
          "no /dev/nvidia-uvm, which CUDA needs (hint: on the node, as root: nvidia-modprobe -u "
          "-c0)");
    }
    if (node.has_mps && (context.own_ipc || context.own_pid)) {
      edits.warnings.emplace_back(
          "the node's MPS daemon may refuse programs in IPC or PID namespaces of their own, with "
          "CUDA error 805"
          " (hint: leave out --container-unshare)");
    }
  }
  check_requirements(context, node.driver, !compat.directory.empty(), edits);
}

Result<void> create_nvidia(const HookContext& context, Edits& edits) {
  const auto* node = edits.found_as<NvidiaNode>();
  if (node == nullptr) return {};
  NvidiaChoice choice = choose_nvidia(context, *node);
  edits.denied_devices = std::move(choice.denied);
  std::ranges::move(choice.notes, std::back_inserter(edits.notes));
  std::ranges::move(choice.warnings, std::back_inserter(edits.warnings));
  edits.refusal = choice.refusal;
  if (choice.nothing || !choice.refusal.empty()) {
    for (MountEdit& mount : edits.mounts) mount.target.clear();
    if (!choice.nothing) return {};
    edits.warnings.clear();
    const std::string* void_of_job = context.of_job("NVIDIA_VISIBLE_DEVICES");
    if (void_of_job != nullptr && slurm_gave_gpus(context)) {
      edits.warnings.push_back(
          formatted("Slurm allocated the GPUs {}, but the job has NVIDIA_VISIBLE_DEVICES={}: none "
                    "is injected (hint: unset it)",
                    *list_of_slurm(context), void_of_job->empty() ? "\"\"" : *void_of_job));
    }
    return {};
  }
  for (std::string& path : choice.devices) {
    edits.devices.push_back({.path = std::move(path), .source = {}, .optional = true});
  }
  const std::string why_no_libcuda = leave_out_misfits(context, *node, choice, edits);
  place_files(context, node->offers, choice.uses, edits);
  if (has_musl_only(context))
    edits.notes.emplace_back(
        "the image has musl: neither the driver's libraries nor nvidia-smi run with it, they need "
        "glibc");
  if (node->driver.versions_agree())
    prepare_cuda(context, *node, choice.uses, why_no_libcuda, edits);
  return {};
}

Result<Edits> task_nvidia(const HookContext& context) {
  Edits edits;
  if (has_mig_parts(context) || !allocated_of(context, granted_nvidia_gpus(context))) return edits;
  NvidiaDriver driver;
  discover_nvidia_devices(context.host_root, driver);
  std::vector<unsigned> minors;
  for (const NvidiaGpu& gpu : driver.gpus) {
    if (context.may_open(gpu.node)) minors.push_back(gpu.minor);
  }
  renumber_variables(context, minors, {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}, edits);
  return edits;
}

}  // namespace

const Hook nvidia_hook{.name = "98-nvidia",
                       .says = "NVIDIA driver and the step's GPUs",
                       .when = when,
                       .prepare = prepare_nvidia,
                       .create = create_nvidia,
                       .task = task_nvidia};

}  // namespace spc
