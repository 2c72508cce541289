#include "hooks/nvidia_driver/driver.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <optional>
#include <vector>

#include "base/format.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/hook.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "hooks/node/node.hpp"

namespace spc {

// --- driver tables ---

namespace {

struct Word {
  std::string_view word;
  std::uint32_t use;
};
constexpr std::array<Word, 8> kCapabilityWords{{{"utility", for_utility},
                                                {"compute", for_compute},
                                                {"video", for_video},
                                                {"graphics", for_graphics},
                                                {"display", for_display},
                                                {"ngx", for_ngx},
                                                {"compat32", for_32_bit},
                                                {"all", for_any}}};

constexpr std::uint32_t for_pictures = for_graphics | for_display;

/// Uses by the file's name up to ".so", from libnvidia-container's src/nvc_info.c, with additions
/// of later drivers.
constexpr std::array<Word, 57> kLibraries{{{"libnvidia-ml", for_utility},
                                           {"libnvidia-cfg", for_utility},
                                           {"libnvidia-nscq", for_utility},
                                           {"libnvidia-sandboxutils", for_utility},
                                           {"libnvsdm", for_utility},
                                           {"libcuda", for_compute},
                                           {"libcudadebugger", for_compute},
                                           {"libnvidia-opencl", for_compute},
                                           {"libnvidia-gpucomp", for_compute | for_pictures},
                                           {"libnvidia-ptxjitcompiler", for_compute},
                                           {"libnvidia-fatbinaryloader", for_compute},
                                           {"libnvidia-allocator", for_compute | for_pictures},
                                           {"libnvidia-compiler", for_compute},
                                           {"libnvidia-pkcs11", for_compute},
                                           {"libnvidia-pkcs11-openssl3", for_compute},
                                           {"libnvidia-nvvm", for_compute},
                                           {"libnvidia-nvvm70", for_compute},
                                           {"libnvidia-tileiras", for_compute},
                                           {"libvdpau_nvidia", for_video},
                                           {"libnvidia-encode", for_video},
                                           {"libnvidia-opticalflow", for_video},
                                           {"libnvcuvid", for_video},
                                           {"libnvidia-eglcore", for_pictures},
                                           {"libnvidia-glcore", for_pictures},
                                           {"libnvidia-tls", for_pictures},
                                           {"libnvidia-glsi", for_pictures},
                                           {"libnvidia-fbc", for_pictures},
                                           {"libnvidia-ifr", for_pictures},
                                           {"libnvidia-rtcore", for_pictures},
                                           {"libnvoptix", for_pictures},
                                           {"libGLX_nvidia", for_pictures},
                                           {"libEGL_nvidia", for_pictures},
                                           {"libGLESv2_nvidia", for_pictures},
                                           {"libGLESv1_CM_nvidia", for_pictures},
                                           {"libnvidia-glvkspirv", for_pictures},
                                           {"libnvidia-cbl", for_pictures},
                                           {"libnvidia-present", for_pictures},
                                           {"libnvidia-vksc-core", for_pictures},
                                           {"libnvidia-vulkan-producer", for_pictures},
                                           {"libnvidia-wayland-client", for_pictures},
                                           {"libnvidia-egl-gbm", for_pictures},
                                           {"libnvidia-egl-wayland", for_pictures},
                                           {"libnvidia-egl-wayland2", for_pictures},
                                           {"libnvidia-egl-xcb", for_pictures},
                                           {"libnvidia-egl-xlib", for_pictures},
                                           {"libGL", for_pictures},
                                           {"libEGL", for_pictures},
                                           {"libGLX", for_pictures},
                                           {"libGLdispatch", for_pictures},
                                           {"libOpenGL", for_pictures},
                                           {"libGLESv1_CM", for_pictures},
                                           {"libGLESv2", for_pictures},
                                           {"libglxserver_nvidia", for_display},
                                           {"libnvidia-gtk2", for_display},
                                           {"libnvidia-gtk3", for_display},
                                           {"libnvidia-ngx", for_ngx},
                                           {"libnvidia-api", for_compute | for_pictures}}};

/// The first driver of each branch of Linux drivers, and the CUDA version that it supports: the
/// release notes of the CUDA toolkit, "CUDA driver versions".
struct Branch {
  unsigned major, cuda;
};
constexpr std::array<Branch, 28> kBranches{
    {{375, 800},  {384, 900},  {390, 901},  {396, 902},  {410, 1000}, {418, 1001}, {440, 1002},
     {450, 1100}, {455, 1101}, {460, 1102}, {465, 1103}, {470, 1104}, {495, 1105}, {510, 1106},
     {515, 1107}, {520, 1108}, {525, 1200}, {530, 1201}, {535, 1202}, {545, 1203}, {550, 1204},
     {555, 1205}, {560, 1206}, {565, 1207}, {570, 1208}, {575, 1209}, {580, 1300}, {590, 1301}}};

}  // namespace

std::optional<std::uint32_t> nvidia_use_of(std::string_view word) {
  for (const auto& [known, use] : kCapabilityWords) {
    if (known == word) return use;
  }
  return std::nullopt;
}

std::uint32_t nvidia_library_use(std::string_view file) {
  const std::string_view stem = file.substr(0, file.find(".so"));
  const auto found = std::find_if(kLibraries.begin(), kLibraries.end(),
                                  [&](const Word& entry) { return entry.word == stem; });
  return found == kLibraries.end() ? std::uint32_t{for_any} : found->use;
}

unsigned cuda_version_of_driver(std::string_view version) {
  const auto major = parse_number(version.substr(0, version.find('.')));
  if (!major || *major > kBranches.back().major) return 0;
  unsigned cuda = 0;
  for (const Branch& branch : kBranches) {
    if (branch.major <= *major) cuda = branch.cuda;
  }
  return cuda;
}

// --- driver devices ---

namespace {

constexpr char kProcGpus[] = "/proc/driver/nvidia/gpus";
constexpr char kCapabilities[] = "/proc/driver/nvidia/capabilities";
constexpr char kCaps[] = "/dev/nvidia-caps";

/// Returns the number in "gpu0" or "gi3", after its letters.
std::optional<std::uint32_t> number_after(std::string_view name, std::string_view letters) {
  return name.starts_with(letters) ? parse_number(name.substr(letters.size())) : std::nullopt;
}

/// Returns the node that a file below capabilities describes, or an empty text.
std::string node_of_capability(const NodeFiles& node, const std::string& access_file) {
  const std::string minor = field_of(node.text(access_file), "DeviceFileMinor");
  return !parse_number(minor) ? std::string() : std::string(kCaps) + "/nvidia-cap" + minor;
}

/// Returns the DRM nodes of a PCI address.
std::vector<std::string> dri_of(const NodeFiles& node, const std::string& pci_address) {
  std::vector<std::string> nodes;
  if (pci_address.empty()) return nodes;
  for (const std::string& name : node.names("/sys/bus/pci/devices/" + pci_address + "/drm")) {
    if ((name.starts_with("card") || name.starts_with("renderD")) &&
        node.exists("/dev/dri/" + name))
      nodes.push_back("/dev/dri/" + name);
  }
  return nodes;
}

/// Returns the PCI address in sysfs's form, "0000:1b:00.0", from that or from "00000000:1B:00.0".
std::string pci_address_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto colon = text.find(':');
  if (colon == 8 && text.starts_with("0000")) text.erase(0, 4);
  return text;
}

/// Adds the MIG instances. Each GPU instance has a directory gi<G>, with one ci<C> for each compute
/// instance.
void add_mig(const NodeFiles& node, NvidiaGpu& gpu) {
  const std::string top = std::string(kCapabilities) + "/gpu" + std::to_string(gpu.minor) + "/mig";
  for (const std::string& gi : node.names(top, "gi")) {
    const auto gpu_instance = number_after(gi, "gi");
    if (!gpu_instance) continue;
    gpu.mig_mode = true;
    for (const std::string& ci : node.names(top + "/" + gi, "ci")) {
      const auto compute_instance = number_after(ci, "ci");
      if (!compute_instance) continue;
      gpu.migs.push_back({
          .gpu_instance = *gpu_instance,
          .compute_instance = *compute_instance,
          .gpu_instance_node = node_of_capability(node, top + "/" + gi + "/access"),
          .compute_instance_node = node_of_capability(node, top + "/" + gi + "/" + ci + "/access"),
      });
    }
  }
}

std::vector<NvidiaGpu> gpus_in_proc(const NodeFiles& node) {
  std::vector<NvidiaGpu> gpus;
  for (const std::string& address : node.names(kProcGpus)) {
    const std::string text = node.text(std::string(kProcGpus) + "/" + address + "/information");
    const auto minor = parse_number(field_of(text, "Device Minor"));
    if (!minor) continue;
    NvidiaGpu gpu;
    gpu.minor = *minor;
    gpu.node = "/dev/nvidia" + std::to_string(*minor);
    gpu.pci_address = pci_address_of(address);
    gpu.uuid = field_of(text, "GPU UUID");
    // GPU-????????-... means that the GPU has not been used yet.
    if (gpu.uuid.find('?') != std::string::npos) gpu.uuid.clear();
    gpu.model = field_of(text, "Model");
    gpus.push_back(std::move(gpu));
  }
  // Addresses have one width and lower case, so the order of their texts is the order of the bus.
  sort_few(gpus,
           [](const NvidiaGpu& a, const NvidiaGpu& b) { return a.pci_address < b.pci_address; });
  return gpus;
}

/// Returns the GPUs for drivers that report none in /proc.
std::vector<NvidiaGpu> gpus_in_dev(const NodeFiles& node) {
  std::vector<NvidiaGpu> gpus;
  for (const std::string& name : node.names("/dev", "nvidia")) {
    const auto minor = number_after(name, "nvidia");
    if (!minor) continue;
    NvidiaGpu gpu;
    gpu.minor = *minor;
    gpu.node = "/dev/" + name;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void add_gpus(const NodeFiles& node, NvidiaDriver& driver) {
  driver.gpus = gpus_in_proc(node);
  if (driver.gpus.empty()) {
    driver.gpus = gpus_in_dev(node);
    if (!driver.gpus.empty())
      driver.notes.push_back(std::string(kProcGpus) +
                             " is empty: GPUs are ordered by device node number");
  }
  for (NvidiaGpu& gpu : driver.gpus) {
    gpu.dri = dri_of(node, gpu.pci_address);
    add_mig(node, gpu);
  }
}

std::vector<std::string> nodes_in(const NodeFiles& node, const std::string& directory,
                                  const std::string& prefix) {
  std::vector<std::string> nodes;
  for (const std::string& name : node.names(directory, prefix))
    nodes.push_back(directory + "/" + name);
  return nodes;
}

}  // namespace

std::string fabric_manager_trace(const std::string& host_root) {
  for (const char* directory : {"/run/nvidia-fabricmanager", "/var/run/nvidia-fabricmanager"}) {
    for (const char* name : {"/socket", "/nv-fabricmanager.pid", "/fm_sm_ipc.socket"}) {
      const std::string path = std::string(directory) + name;
      if (::access((host_root + path).c_str(), F_OK) == 0 || errno == EACCES) return path;
    }
  }
  return {};
}

void discover_nvidia_devices(const std::string& host_root, NvidiaDriver& driver) {
  const NodeFiles node(host_root);
  add_gpus(node, driver);
  const auto control = [&](const std::string& path, std::uint32_t uses) {
    if (node.exists(path)) driver.control_nodes.push_back({path, path, uses});
  };
  control("/dev/nvidiactl", for_any);
  control("/dev/nvidia-uvm", for_compute);
  control("/dev/nvidia-uvm-tools", for_compute);
  control("/dev/nvidia-modeset", for_graphics | for_display);
  for (const char* which : {"config", "monitor"}) {
    const std::string cap = node_of_capability(node, std::string(kCapabilities) + "/mig/" + which);
    if (!cap.empty() && node.exists(cap)) driver.mig_control_nodes.push_back(cap);
  }
  driver.imex_channels = nodes_in(node, "/dev/nvidia-caps-imex-channels", "channel");
  driver.nvswitch_nodes = nodes_in(node, "/dev", "nvidia-nvswitch");
  driver.fs_nodes = nodes_in(node, "/dev", "nvidia-fs");
  if (node.exists("/dev/gdrdrv")) driver.gdrcopy_node = "/dev/gdrdrv";
}

// --- driver files ---

using namespace std::string_literals;
namespace {

#if defined(__aarch64__)
constexpr char kDriverMultiarch[] = "aarch64-linux-gnu";
constexpr char kCpu[] = "aarch64";
constexpr std::array<const char*, 2> kDirectories32{"/usr/lib/arm-linux-gnueabihf", "/usr/lib32"};
constexpr std::uint16_t kDriverMachine32 = EM_ARM;
#else
constexpr char kDriverMultiarch[] = "x86_64-linux-gnu";
constexpr char kCpu[] = "x86_64";
constexpr std::array<const char*, 3> kDirectories32{"/usr/lib/i386-linux-gnu", "/usr/lib32",
                                                    "/usr/lib"};
constexpr std::uint16_t kDriverMachine32 = EM_386;
#endif

/// Roots of drivers outside the node's own directories that need no configuration: those of the GPU
/// operator and of GKE.
constexpr std::array<const char*, 3> kOtherRoots{
    "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"};

/// Returns Debian's directory for drivers of several branches: current, tesla, tesla-470,
/// legacy-390xx.
std::string debian_drivers(const std::string& root) {
  return root + "/usr/lib/" + kDriverMultiarch + "/nvidia/";
}

/// Returns directories below a root, in the order of the toolkit's pkg/lookup/library.go; also
/// lib64 and lib for a root that contains only the driver.
std::vector<std::string> directories_below(const NodeFiles& node, const std::string& root) {
  const std::string multiarch = kDriverMultiarch;
  std::vector<std::string> directories{root + "/usr/lib64", root + "/usr/lib/" + multiarch};
  for (const std::string& branch : node.names(debian_drivers(root)))
    directories.push_back(debian_drivers(root) + branch);
  for (const std::string& directory : {"/lib64"s, "/lib/" + multiarch})
    directories.push_back(root + directory);
  if (root.empty()) return directories;
  for (const char* directory : {"/lib", "/usr/lib", ""}) directories.push_back(root + directory);
  return directories;
}

/// Returns the version at the end of a library's name, 550.54.15; empty if it has none.
std::string version_of_file(std::string_view file) {
  const auto so = file.find(".so.");
  if (so == std::string_view::npos) return {};
  const std::string_view version = file.substr(so + 4);
  return version.find('.') == std::string_view::npos ? std::string() : std::string(version);
}

/// Resolves the links of `path`, a file below `root`: Debian's alternatives, versions of a library.
/// Returns `path` if it is no link.
std::string without_links(const NodeFiles& node, const std::string& root, std::string path) {
  for (int links = 0; links < 8; ++links) {
    const std::string target = node.link(path);
    if (target.empty()) break;
    path = target.starts_with('/') ? root + target : path.substr(0, path.rfind('/') + 1) + target;
    path = normal_path(path);
  }
  return path;
}

/// Returns the version of the libcuda in this directory; empty if there is none. Prefers `version`
/// if it exists.
std::string libcuda_version_in(const NodeFiles& node, const std::string& directory,
                               const std::string& version) {
  if (!version.empty() && node.is_regular(directory + "/libcuda.so." + version)) return version;
  // The version is in the target of the link that ldconfig has made.
  std::string target = node.link(directory + "/libcuda.so.1");
  target = target.substr(target.rfind('/') + 1);
  return node.is_regular(directory + "/" + target) ? version_of_file(target) : std::string();
}

/// Returns the version in /proc/driver/nvidia/version: "NVRM version: NVIDIA UNIX x86_64 Kernel
/// Module  550.54.15  Tue ...".
std::string version_in_first_line(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty()) {
    const std::string_view word = next_part(text, ' ');
    const auto dot = word.find('.');
    if (dot != std::string_view::npos && parse_number(word.substr(0, dot)) > 0U)
      return std::string(word);
  }
  return {};
}

/// Returns whether the library has a version of its own.
bool has_own_version(std::string_view file) {
  if (!file.starts_with("libnvidia-")) return false;
  for (const char* stem :
       {"libnvidia-nvvm70.so.", "libnvidia-egl-gbm.so.", "libnvidia-egl-wayland.so.",
        "libnvidia-egl-wayland2.so.", "libnvidia-egl-xcb.so.", "libnvidia-egl-xlib.so."}) {
    if (file.starts_with(stem)) return true;
  }
  return file == "libnvidia-api.so.1";
}

/// Returns the properties of a library of the driver; empty if it is not for this machine, or only
/// another name of a library.
std::optional<NvidiaLibrary> driver_library(const NodeFiles& node, const std::string& directory,
                                            const std::string& folder, const std::string& file,
                                            bool is_32_bit) {
  const std::string path = directory + (folder.empty() ? "" : "/" + folder) + "/" + file;
  const UniqueFd opened(::open(node.on_disk(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened) return std::nullopt;
  if (elf_machine_of(opened.get()) != (is_32_bit ? kDriverMachine32 : own_machine()))
    return std::nullopt;
  return NvidiaLibrary{.path = path,
                       .file = file,
                       .soname = folder.empty() ? soname_of(opened.get()).value_or("") : "",
                       .folder = folder,
                       .uses = nvidia_library_use(file) | (is_32_bit ? for_32_bit : 0U),
                       .is_32_bit = is_32_bit,
                       .has_plain_link = node.exists(path.substr(0, path.rfind(".so.") + 3))};
}

void add_driver_libraries(const NodeFiles& node, const std::string& directory, bool is_32_bit,
                          NvidiaDriver& driver) {
  const std::string ending = ".so." + driver.library_version;
  for (const char* folder : {"", "vdpau"}) {
    const std::string below = *folder == '\0' ? directory : directory + "/" + folder;
    const auto is_of_driver = [&](std::string_view file) {
      return file.starts_with("lib") && (file.ends_with(ending) || has_own_version(file));
    };
    for (const std::string& file : node.names_if(below, is_of_driver)) {
      // This is a link that has the soname as its name.
      if (!file.ends_with(ending) && !node.link(below + "/" + file).empty()) continue;
      const auto is_it = [&](const NvidiaLibrary& other) {
        return other.file == file && other.is_32_bit == is_32_bit;
      };
      if (std::ranges::any_of(driver.libraries, is_it)) continue;
      if (auto library = driver_library(node, directory, folder, file, is_32_bit))
        driver.libraries.push_back(*std::move(library));
    }
  }
}

/// Returns the first of `paths`, in order below `root`, that exists, without host_root.
std::string first_of(const NodeFiles& node, const std::string& root,
                     std::initializer_list<std::string> paths) {
  for (const std::string& path : paths) {
    if (node.exists(root + path)) return root + path;
  }
  return {};
}

void add_file(const NodeFiles& node, const std::string& root, const std::string& target,
              std::uint32_t uses, std::vector<NvidiaFile>& files) {
  if (node.exists(root + target)) files.push_back({root + target, target, uses});
}

void add_binaries(const NodeFiles& node, const std::string& root, NvidiaDriver& driver) {
  constexpr std::array<std::pair<const char*, std::uint32_t>, 8> kBinaries{
      {{"nvidia-smi", for_utility},
       {"nvidia-debugdump", for_utility},
       {"nvidia-persistenced", for_utility},
       {"nv-fabricmanager", for_utility},
       {"nvidia-cuda-mps-control", for_compute},
       {"nvidia-cuda-mps-server", for_compute},
       {"nvidia-imex", for_compute},
       {"nvidia-imex-ctl", for_compute}}};
  for (const auto& [name, uses] : kBinaries) {
    const std::string file = "/"s + name;
    const std::string path =
        first_of(node, root,
                 {"/usr/bin" + file, "/usr/sbin" + file, "/bin" + file, "/usr/local/bin" + file});
    if (!path.empty()) driver.binaries.push_back({path, "/usr/bin" + file, uses});
  }
}

void add_firmware(const NodeFiles& node, const std::string& root, NvidiaDriver& driver) {
  std::string own = node.text("/sys/module/firmware_class/parameters/path");
  own.erase(std::min(own.find('\n'), own.size()));
  std::string release = node.text("/proc/sys/kernel/osrelease");
  release.erase(std::min(release.find('\n'), release.size()));
  for (const std::string& directory :
       {own, "/lib/firmware/updates/" + release, "/lib/firmware/updates"s,
        "/lib/firmware/" + release, "/lib/firmware"s}) {
    if (directory.empty() || directory.ends_with("/")) continue;  // the kernel does not report it
    const std::string below = "/nvidia/" + driver.version + "/";
    for (const std::string& name : node.names(root + directory + below, "gsp")) {
      if (name.ends_with(".bin"))
        driver.firmware.push_back(
            {root + directory + below + name, "/lib/firmware" + below + name, for_utility});
    }
    if (!driver.firmware.empty()) return;
  }
}

void add_config_files(const NodeFiles& node, const std::string& root, NvidiaDriver& driver) {
  constexpr std::uint32_t pictures = for_graphics | for_display;
  for (const char* file : {"/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                           "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
                           "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
                           "/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json",
                           "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
                           "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
                           "/usr/share/nvidia/nvoptix.bin"})
    add_file(node, root, file, pictures, driver.config_files);
  add_file(node, root, "/etc/OpenCL/vendors/nvidia.icd", for_compute, driver.config_files);
  const std::string icd = "/etc/vulkan/icd.d/nvidia_icd";
  for (const std::string& place :
       {icd + ".json", icd + "." + kCpu + ".json", "/usr/share/vulkan/icd.d/nvidia_icd.json"s,
        "/usr/share/vulkan/icd.d/nvidia_icd."s + kCpu + ".json"}) {
    if (!node.exists(root + place)) continue;
    driver.config_files.push_back({root + place, icd + ".json", pictures});
    break;
  }
  const std::string layers = "/nvidia_layers.json";
  add_file(node, root, "/etc/vulkan/icd.d" + layers, pictures, driver.config_files);
  const std::string implicit = "/vulkan/implicit_layer.d" + layers;
  const std::string found = first_of(node, root, {"/etc" + implicit, "/usr/share" + implicit});
  if (!found.empty()) driver.config_files.push_back({found, "/etc" + implicit, pictures});
  add_file(node, "", "/etc/cufile.json", for_compute, driver.config_files);
}

/// Adds the sockets. Programs look in /var/run, which is a link to /run on most nodes and images.
void add_sockets(const NodeFiles& node, const std::string& root, NvidiaDriver& driver) {
  for (const char* name : {"/nvidia-persistenced/socket", "/nvidia-fabricmanager/socket"}) {
    std::string path = first_of(node, "", {"/run"s + name, "/var/run"s + name});
    if (path.empty() && !root.empty())
      path = first_of(node, root, {"/run"s + name, "/var/run"s + name});
    if (!path.empty()) driver.sockets.push_back({path, "/var/run"s + name, for_utility});
  }
}

/// Returns the directory of libcuda in the loader's cache below `root`, if it is this version or
/// none is known.
std::string directory_in_cache(const NodeFiles& node, const std::string& root,
                               const std::string& version) {
  const UniqueFd file(
      ::open(node.on_disk(root + "/etc/ld.so.cache").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto flags = cache_flags_of(own_machine());
  if (!file || !flags) return {};
  const auto cache = LdCache::read(file.get());
  const LdCache::Entry* entry = cache ? cache->find("libcuda.so.1", *flags) : nullptr;
  if (entry == nullptr) return {};
  const std::string library = without_links(node, root, root + std::string(entry->path));
  const std::string directory = library.substr(0, library.rfind('/'));
  const std::string found = libcuda_version_in(node, directory, version);
  return !found.empty() && (version.empty() || found == version) ? directory : std::string();
}

/// Returns the root that has libcuda, and notes directory and version; empty if there is none.
std::optional<std::string> find_libcuda(const NodeFiles& node, const std::string& driver_root,
                                        NvidiaDriver& driver) {
  std::vector<std::string> roots;
  if (!driver_root.empty()) roots.push_back(driver_root);
  if (driver_root.empty()) {
    roots.emplace_back();
    roots.insert(roots.end(), kOtherRoots.begin(), kOtherRoots.end());
  }
  std::string other, other_directory;  // a libcuda whose version differs from the kernel driver's
  for (const std::string& root : roots) {
    if (!root.empty() && !node.exists(root)) continue;
    for (const std::string& directory : directories_below(node, root)) {
      const std::string found = libcuda_version_in(node, directory, driver.version);
      if (found.empty()) continue;
      if (driver.version.empty() || found == driver.version) {
        driver.library_version = found;
        driver.library_directories.push_back(directory);
        return root;
      }
      if (other.empty()) other = found, other_directory = directory;
    }
  }
  for (const std::string& root : roots) {
    const std::string directory = directory_in_cache(node, root, driver.version);
    if (directory.empty() || directory.ends_with("/")) continue;  // the kernel does not report it
    driver.library_version = libcuda_version_in(node, directory, driver.version);
    driver.library_directories.push_back(directory);
    return root;
  }
  driver.library_version = other;
  if (!other.empty())
    driver.notes.push_back(
        formatted("{} contains the libraries of driver {}", other_directory, other));
  return std::nullopt;
}

}  // namespace

NvidiaDriver discover_nvidia(const std::string& host_root, const std::string& driver_root) {
  const NodeFiles node(host_root);
  NvidiaDriver driver;
  driver.version = node.text("/sys/module/nvidia/version");
  driver.version.erase(std::min(driver.version.find('\n'), driver.version.size()));
  if (driver.version.empty())
    driver.version = version_in_first_line(node.text("/proc/driver/nvidia/version"));
  if (driver.version.empty()) driver.notes.emplace_back("no NVIDIA driver in the kernel");
  discover_nvidia_devices(host_root, driver);

  const auto root = find_libcuda(node, driver_root, driver);
  if (!root) {
    driver.notes.push_back(
        formatted("no libcuda.so.{}{}", driver.version.empty() ? "VERSION"s : driver.version,
                  driver_root.empty() ? " in the library directories" : " below " + driver_root));
    return driver;
  }
  if (driver.version.empty()) driver.version = driver.library_version;
  const std::string directory = driver.library_directories.front();
  add_driver_libraries(node, directory, false, driver);
  // Debian keeps files on which several drivers conflict in that directory, and the other files at
  // their usual paths.
  if (directory.starts_with(debian_drivers(*root)))
    add_driver_libraries(node, *root + "/usr/lib/" + kDriverMultiarch, false, driver);
  for (const char* directory_32 : kDirectories32) {
    const std::string found = *root + directory_32;
    if (found == directory || !node.is_regular(found + "/libcuda.so." + driver.library_version))
      continue;
    driver.library_directories.push_back(found);
    add_driver_libraries(node, found, true, driver);
    break;
  }
  add_binaries(node, *root, driver);
  add_firmware(node, *root, driver);
  add_config_files(node, *root, driver);
  add_sockets(node, *root, driver);
  driver.notes.push_back(
      formatted("driver {} in {}", driver.library_version, driver.library_directories.front()));
  return driver;
}

// --- cuda compat ---

namespace {

/// NVIDIA's NGC images have it in the second directory. Their entrypoint links compat/lib to that
/// and puts the link into LD_LIBRARY_PATH.
constexpr std::array<const char*, 2> kCompatDirectories{"/usr/local/cuda/compat",
                                                        "/usr/local/cuda/compat/lib.real"};
constexpr char kSection[] = ".note.cuda.fwd_compatibility";
constexpr std::size_t kMostCompatNames = 4096;
constexpr std::uint64_t kMostNote = 64 << 10;

/// Returns the files libcuda.so.X.Y of a directory of the image; none for an implausibly large
/// directory.
std::vector<std::string> libcudas(const HookContext& context, const char* directory) {
  std::vector<std::string> names;
  std::size_t seen = 0;
  for (DirectoryReader entries(context.open_in_image(directory, O_RDONLY | O_DIRECTORY));
       entries.next();) {
    if (++seen > kMostCompatNames) return {};
    const auto name = entries.name();
    if (name.starts_with("libcuda.so.") && name.find('.', 11) != std::string_view::npos)
      names.emplace_back(name);
  }
  return names;
}

bool read_at(int fd, void* to, std::size_t size, std::uint64_t offset) {
  return offset <= INT64_MAX &&
         ::pread(fd, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

/// NVIDIA's note in a 64-bit library. All sizes come from the file and are limited.
struct CompatNote {
  bool there = false;
  std::string text;  ///< empty if it cannot be read
};

/// Returns the text of a section with one note, whose owner is padded to the section's alignment
/// (cmd/nvidia-cdi-hook/cudacompat).
std::string text_of_note(int fd, const Elf64_Shdr& section) {
  constexpr std::string_view kOwner("NVIDIA Corporation\0", 19);
  const std::uint64_t align = std::max<std::uint64_t>(section.sh_addralign, 1);
  if (section.sh_type != SHT_NOTE || section.sh_size > kMostNote ||
      section.sh_size < sizeof(Elf64_Nhdr) || align > 8)
    return {};
  std::string bytes(section.sh_size, '\0');
  if (!read_at(fd, bytes.data(), bytes.size(), section.sh_offset)) return {};
  Elf64_Nhdr note{};
  std::copy_n(bytes.data(), sizeof note, reinterpret_cast<char*>(&note));
  if (note.n_namesz != kOwner.size() || bytes.compare(sizeof note, kOwner.size(), kOwner) != 0)
    return {};
  const std::uint64_t begin = sizeof note + (kOwner.size() + align - 1) / align * align;
  if (begin + note.n_descsz > bytes.size()) return {};
  return bytes.substr(begin, note.n_descsz);
}

CompatNote note_of(int fd) {
  Elf64_Ehdr header{};
  if (!read_at(fd, &header, sizeof header, 0) ||
      !std::equal(header.e_ident, header.e_ident + SELFMAG, ELFMAG) ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_shnum > 512 || header.e_shstrndx >= header.e_shnum)
    return {};
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read_at(fd, sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff))
    return {};
  const Elf64_Shdr& texts = sections[header.e_shstrndx];
  if (texts.sh_size > kMostNote) return {};
  std::string names(texts.sh_size, '\0');
  if (!read_at(fd, names.data(), names.size(), texts.sh_offset)) return {};
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name < names.size() &&
        std::string_view(names.c_str() + section.sh_name) == kSection)
      return {.there = true, .text = text_of_note(fd, section)};
  }
  return {};
}

std::optional<std::uint32_t> cuda_major_of(std::string_view version) {
  return parse_number(version.substr(0, version.find('.')));
}

/// Returns whether the note names this major version of a driver; empty if it cannot be read.
std::optional<bool> is_for_driver(const std::string& note, std::optional<std::uint32_t> major) {
  const auto json = Json::parse(note.c_str());
  const Json* drivers = json ? json->find("Driver") : nullptr;
  if (drivers == nullptr || !drivers->is_array()) return std::nullopt;
  return std::ranges::any_of(drivers->elements(), [&](const Json& entry) {
    if (entry.is_number()) return major == entry.as_number();
    return entry.is_text() && parse_number(entry.as_text()) == major;
  });
}

}  // namespace

std::string why_no_cuda_compat(const HookContext& context,
                               const std::vector<NvidiaGpu>& accessible) {
  if (!context.flag("cuda_compat", true)) return "cuda_compat is off in config.toml";
  for (const NvidiaGpu& gpu : accessible) {
    if (gpu.model.find("GeForce") != std::string::npos)
      return formatted("{} does not support it", gpu.model);
  }
  return {};
}

void add_compat(const CudaCompat& compat, Edits& edits) {
  if (!compat.directory.empty())
    edits.library_directories.push_back({.path = compat.directory, .before = true});
  if (!compat.reason.empty()) edits.notes.push_back(compat.reason);
}

CudaCompat cuda_compat_of_image(const HookContext& context, std::string_view driver_version,
                                std::string_view why_not) {
  CudaCompat compat;
  if (!context.open_in_image) return compat;

  std::string directory;
  std::vector<std::string> names;
  for (const char* place : kCompatDirectories) {
    directory = place;
    names = libcudas(context, place);
    if (!names.empty()) break;
  }
  if (names.empty()) return compat;
  if (names.size() > 1) {
    compat.reason = directory + " in the image has several libcuda.so: not used";
    return compat;
  }

  // Read the note in the only libcuda.
  const std::string version = names.front().substr(sizeof "libcuda.so." - 1);
  const std::string path = directory + "/" + names.front();
  const UniqueFd file = context.open_regular(path.c_str());
  if (!file) {
    compat.reason = path + " in the image is not a file: not used";
    return compat;
  }
  compat.version = version;
  // The note decides. Without a note, the library must have a later major version.
  const CompatNote note = note_of(file.get());
  const auto driver_major = cuda_major_of(driver_version);
  const auto named = is_for_driver(note.text, driver_major);
  if (note.there && !named) {
    compat.reason = path + " in the image does not say which drivers it is for: not used";
    return compat;
  }
  const bool use = named ? *named && compare_versions(version, driver_version) > 0
                         : cuda_major_of(version) > driver_major;
  if (use && !why_not.empty()) {
    compat.reason = formatted("libcuda {} of the image is not used: {}", version, why_not);
    return compat;
  }
  if (use) compat.directory = directory;
  compat.reason = formatted("libcuda {} of the image {} the driver's {}", version,
                            use ? "is used instead of" : "does not replace", driver_version);
  return compat;
}

}  // namespace spc
