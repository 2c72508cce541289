#include <elf.h>
#include <fcntl.h>

#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "hooks/node/node_files.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/text.hpp"

namespace spc {
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

/// Where a driver lies that was not put into the node's own directories and that nobody has told us
/// of: the GPU operator, GKE.
constexpr std::array<const char*, 3> kOtherRoots{
    "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"};

/// Debian's place for drivers of several branches: current, tesla, tesla-470, legacy-390xx.
std::string debian_drivers(const std::string& root) {
  return root + "/usr/lib/" + kDriverMultiarch + "/nvidia/";
}

/// Below a root, in the order of the toolkit's pkg/lookup/library.go; lib64 and lib for a root that
/// holds nothing else.
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

/// The version that the name of a library ends with, 550.54.15; empty if it has none.
std::string version_of_file(std::string_view file) {
  const auto so = file.find(".so.");
  if (so == std::string_view::npos) return {};
  const std::string_view version = file.substr(so + 4);
  return version.find('.') == std::string_view::npos ? std::string() : std::string(version);
}

/// Where the links of `path`, a file below `root`, lead: alternatives of Debian, versions of a
/// library. Itself if it is none.
std::string without_links(const NodeFiles& node, const std::string& root, std::string path) {
  for (int links = 0; links < 8; ++links) {
    const std::string target = node.link(path);
    if (target.empty()) break;
    path = target.starts_with('/') ? root + target : path.substr(0, path.rfind('/') + 1) + target;
    path = normal_path(path);
  }
  return path;
}

/// Of the libcuda in this directory, empty if there is none; `version` if there is that one.
std::string libcuda_version_in(const NodeFiles& node, const std::string& directory,
                               const std::string& version) {
  if (!version.empty() && node.is_regular(directory + "/libcuda.so." + version)) return version;
  // Its name is the target of the link that ldconfig has made.
  std::string target = node.link(directory + "/libcuda.so.1");
  target = target.substr(target.rfind('/') + 1);
  return node.is_regular(directory + "/" + target) ? version_of_file(target) : std::string();
}

/// Of /proc/driver/nvidia/version: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue
/// ...".
std::string version_in_first_line(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const auto dot = word.find('.');
    if (dot != std::string_view::npos && decimal(word.substr(0, dot)) > 0U)
      return std::string(word);
  }
  return {};
}

/// Libraries whose version is their own.
bool has_own_version(std::string_view file) {
  if (!file.starts_with("libnvidia-")) return false;
  for (const char* stem :
       {"libnvidia-nvvm70.so.", "libnvidia-egl-gbm.so.", "libnvidia-egl-wayland.so.",
        "libnvidia-egl-wayland2.so.", "libnvidia-egl-xcb.so.", "libnvidia-egl-xlib.so."}) {
    if (file.starts_with(stem)) return true;
  }
  return file == "libnvidia-api.so.1";
}

/// What a library of the driver says about itself; nothing if it is none for this machine, or only
/// another one's name.
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
      if (!file.ends_with(ending) && !node.link(below + "/" + file).empty())
        continue;  // its soname, not itself
      const auto is_it = [&](const NvidiaLibrary& other) {
        return other.file == file && other.is_32_bit == is_32_bit;
      };
      if (std::ranges::any_of(driver.libraries, is_it)) continue;
      if (auto library = driver_library(node, directory, folder, file, is_32_bit))
        driver.libraries.push_back(*std::move(library));
    }
  }
}

/// `paths` in order below `root`: the first that exists, without host_root.
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
    if (directory.empty() || directory.ends_with("/")) continue;  // the kernel does not say
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

/// Programs look in /var/run, which most nodes and images have as a link to /run.
void add_sockets(const NodeFiles& node, const std::string& root, NvidiaDriver& driver) {
  for (const char* name : {"/nvidia-persistenced/socket", "/nvidia-fabricmanager/socket"}) {
    std::string path = first_of(node, "", {"/run"s + name, "/var/run"s + name});
    if (path.empty() && !root.empty())
      path = first_of(node, root, {"/run"s + name, "/var/run"s + name});
    if (!path.empty()) driver.sockets.push_back({path, "/var/run"s + name, for_utility});
  }
}

/// Where the cache of the loader below `root` has libcuda, if it is this version or none is known.
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

/// The root below which libcuda lies, having noted directory and version; nothing if it is nowhere.
std::optional<std::string> find_libcuda(const NodeFiles& node, const std::string& driver_root,
                                        NvidiaDriver& driver) {
  std::vector<std::string> roots;
  if (!driver_root.empty()) roots.push_back(driver_root);
  if (driver_root.empty()) {
    roots.emplace_back();
    roots.insert(roots.end(), kOtherRoots.begin(), kOtherRoots.end());
  }
  std::string other, other_directory;  // of another version than the kernel's
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
    if (directory.empty() || directory.ends_with("/")) continue;  // the kernel does not say
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
  // Debian keeps there what several drivers would quarrel about, and the rest where it belongs.
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

}  // namespace spc
