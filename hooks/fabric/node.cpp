// The node's fabric adapters in sysfs, and the site's libraries for them.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <iterator>
#include <set>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "hooks/fabric/fabric.hpp"
#include "hooks/hook.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/loader.hpp"

namespace spc {

// --- node ---

namespace {

std::vector<std::string> entries_of(const std::string& directory) {
  std::vector<std::string> names;
  for (DirectoryReader entries(directory); entries.next();) {
    if (!entries.name().starts_with('.')) names.emplace_back(entries.name());
  }
  sort_few(names, [](const auto& a, const auto& b) { return compare_versions(a, b) < 0; });
  return names;
}

/// Returns a line of sysfs without its end; empty if it cannot be read.
std::string line_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto text = file ? read_file(file.get(), 4096) : Result<std::string>(std::string());
  return text ? text->substr(0, text->find('\n')) : "";
}

/// Returns the last component of a link's target.
std::string last_of_link(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), text, sizeof text);
  const std::string target(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return target.substr(target.rfind('/') + 1);
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Nodes of one class in sysfs (uverbs0, umad1) with their adapters.
struct NodesOfClass {
  std::vector<std::pair<std::string, std::string>> nodes;  ///< adapter, /dev/infiniband/NAME

  NodesOfClass(const std::string& root, const std::string& name) {
    const std::string directory = root + "/sys/class/" + name;
    for (const std::string& entry : entries_of(directory)) {
      std::string adapter = line_of(directory + "/" + entry + "/ibdev");
      const std::string node = "/dev/infiniband/" + entry;
      if (!adapter.empty() && exists(root + node)) nodes.emplace_back(std::move(adapter), node);
    }
  }
  [[nodiscard]] std::vector<std::string> of(const std::string& adapter) const {
    std::vector<std::string> found;
    for (const auto& [whose, node] : nodes) {
      if (whose == adapter) found.push_back(node);
    }
    return found;
  }
};

void add_verbs(const std::string& root, std::vector<FabricDevice>& devices) {
  const std::string directory = root + "/sys/class/infiniband";
  const auto names = entries_of(directory);
  if (names.empty()) return;
  const NodesOfClass uverbs(root, "infiniband_verbs");
  const NodesOfClass management(root, "infiniband_mad");
  for (const std::string& name : names) {
    const std::string place = directory + "/" + name;
    FabricDevice device{.kind = FabricDevice::Kind::verbs,
                        .name = name,
                        .provider = {},
                        .link_layer = {},
                        .pci_address = {},
                        .node = {},
                        .others = management.of(name)};
    device.provider = verbs_provider(last_of_link(place + "/device/driver"), name);
    device.link_layer = line_of(place + "/ports/1/link_layer");
    device.pci_address = last_of_link(place + "/device");
    const auto nodes = uverbs.of(name);
    if (device.provider == "efa") {
      device.kind = FabricDevice::Kind::efa;
      device.link_layer = "EFA";  // the kernel reports Unknown
    }
    if (device.provider == "hfi1verbs") {
      device.kind = FabricDevice::Kind::omni_path;
      device.link_layer = "Omni-Path";
      device.node = exists(root + "/dev/" + name) ? "/dev/" + name : "";
      device.others.insert(device.others.end(), nodes.begin(), nodes.end());
    } else if (!nodes.empty()) {
      device.node = nodes.front();
    }
    devices.push_back(std::move(device));
  }
}

void add_slingshot(const std::string& root, std::vector<FabricDevice>& devices) {
  const std::string directory = root + "/sys/class/cxi";
  for (const std::string& name : entries_of(directory)) {
    const std::string node = "/dev/" + name;
    devices.push_back({.kind = FabricDevice::Kind::slingshot,
                       .name = name,
                       .provider = "cxi",
                       .link_layer = "Slingshot",
                       .pci_address = last_of_link(directory + "/" + name + "/device"),
                       .node = exists(root + node) ? node : "",
                       .others = {}});
  }
}

}  // namespace

std::string verbs_provider(const std::string& module, const std::string& name) {
  // PCI devices that the providers match (rdma-core, providers/*), by their kernel modules.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kOfModules{
      {{"mlx5_core", "mlx5"},
       {"mlx4_core", "mlx4"},
       {"bnxt_en", "bnxt_re"},
       {"ice", "irdma"},
       {"i40e", "irdma"},
       {"idpf", "irdma"},
       {"efa", "efa"},
       {"hns3", "hns"},
       {"hns_roce_hw_v2", "hns"},
       {"erdma", "erdma"},
       {"hfi1", "hfi1verbs"},
       {"cxgb4", "cxgb4"},
       {"qede", "qedr"},
       {"vmw_pvrdma", "vmw_pvrdma"},
       {"mana", "mana"},
       {"ib_qib", "ipathverbs"}}};
  for (const auto& [of_module, provider] : kOfModules) {
    if (module == of_module) return std::string(provider);
  }
  constexpr std::array<std::string_view, 10> kNames{"mlx5",  "mlx4", "bnxt_re", "irdma", "efa",
                                                    "erdma", "hns",  "rxe",     "siw",   "mana"};
  for (const std::string_view provider : kNames) {
    if (name.starts_with(provider)) return std::string(provider);
  }
  return {};
}

std::vector<FabricDevice> fabric_devices(const HookContext& context) {
  std::vector<FabricDevice> devices;
  add_verbs(context.host_root, devices);
  add_slingshot(context.host_root, devices);
  return devices;
}

// --- libraries ---

namespace {

constexpr char kPlace[] = "/usr/lib/spank-container/fabric/";  ///< in the container
/// not in LD_LIBRARY_PATH
constexpr char kFallbacks[] = "/usr/lib/spank-container/fabric/fallback/";
constexpr char kDrivers[] = "/etc/libibverbs.d/";
constexpr std::size_t kLargestCache = 16 << 20;
constexpr std::size_t kMostSearched = 64;  ///< directories of an image's LD_LIBRARY_PATH

/// Directories of libraries that an image's programs find by an RPATH.
constexpr std::array<const char*, 20> kUsualPlaces{"/usr/local/lib",
                                                   "/usr/local/lib64",
                                                   "/opt/amazon/efa/lib",
                                                   "/opt/amazon/efa/lib64",
                                                   "/opt/amazon/ofi-nccl/lib",
                                                   "/opt/amazon/ofi-nccl/lib64",
                                                   "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
                                                   "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
                                                   "/opt/aws-ofi-nccl/lib",
                                                   "/opt/libfabric/lib",
                                                   "/opt/libfabric/lib64",
                                                   "/opt/cray/lib64",
                                                   "/opt/cray/libfabric/lib64",
                                                   "/opt/hpcx/ompi/lib",
                                                   "/opt/hpcx/ucx/lib",
                                                   "/opt/hpcx/sharp/lib",
                                                   "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
                                                   "/opt/hpcx/hcoll/lib",
                                                   "/opt/mellanox/sharp/lib",
                                                   "/opt/conda/lib"};

std::string driver_file(const std::string& provider) { return kDrivers + provider + ".driver"; }

/// Returns the provider name in libibverbs: mlx5 for libmlx5-rdmav34.so (rdma-core,
/// libibverbs/dynamic_driver.c). Empty for other files.
std::string provider_of_file(std::string_view file) {
  const auto end = file.find("-rdmav");
  return file.starts_with("lib") && end != std::string_view::npos
             ? std::string(file.substr(3, end - 3))
             : "";
}

/// Names the providers by absolute path, so that libibverbs uses the node's. libibverbs searches
/// its own directory first, where the image may have a provider of the same ABI that is older than
/// the adapter. The node's provider works only with the node's libibverbs, so that has to be
/// mounted as well.
void name_providers(const std::vector<std::string>& providers, Edits& edits) {
  const auto is_verbs = [](const LibraryEdit& library) {
    return library.soname == "libibverbs.so.1";
  };
  const bool has_verbs = std::ranges::any_of(edits.libraries, is_verbs);
  for (const std::string& provider : providers) {
    const std::string place = has_verbs ? formatted("{}lib{}", kPlace, provider) : provider;
    edits.files.push_back({driver_file(provider), formatted("driver {}\n", place)});
  }
  if (!providers.empty() && !has_verbs)
    edits.warnings.emplace_back(
        "fabric_libraries: a provider without libibverbs.so.1 (hint: name both: they fit each "
        "other only)");
}

/// Puts the directories of these libraries before those of an image that sets LD_LIBRARY_PATH,
/// whose libraries would be found first.
void prefer_fabric_libraries(const HookContext& context, Edits& edits) {
  const auto is_ours = [](const LibraryEdit& library) {
    return library.before && library.path.starts_with(kPlace);
  };
  const std::string* path = context.of_image("LD_LIBRARY_PATH");
  if (path == nullptr || path->empty() || std::ranges::none_of(edits.libraries, is_ours)) return;
  edits.environment.prepend["LD_LIBRARY_PATH"] = std::string(kPlace, sizeof kPlace - 2);
}

/// Returns the targets of libraries that can be loaded in the image and do not break its own.
/// `notes` gets the reason for each other library, `warnings` one text for all of them.
std::set<std::string> choose_for_fabric(const std::vector<OfferedLibrary>& offered, LibraryFit& fit,
                                        std::vector<std::string>& notes,
                                        std::vector<std::string>& warnings) {
  std::vector<HostLibrary> libraries;
  for (const OfferedLibrary& one : offered) libraries.push_back(one.library);
  const LibraryFit::Choice choice = fit.choose(libraries);
  for (const auto& [library, misfit] : choice.left_out)
    notes.push_back(printable(misfit.text) + ": it is left out");
  if (!choice.left_out.empty())
    warnings.push_back(choice.summary() + hint_for(choice.left_out.front().second));
  std::set<std::string> targets;
  for (const HostLibrary* library : choice.kept) {
    targets.insert(offered[static_cast<std::size_t>(library - libraries.data())].target);
    if (library->fallback) continue;
    const auto lost = fit.lost_with(*library);
    if (lost.empty()) continue;
    notes.push_back(formatted(
        "the node's {} is older than the image's: programs that need its {} will not start",
        library->soname, printable(*lost.rbegin())));
    warnings.push_back(notes.back());
  }
  return targets;
}

}  // namespace

const char* hint_for(const Misfit& misfit) {
  switch (misfit.kind) {
    case Misfit::Kind::no_glibc:
    case Misfit::Kind::old_glibc: return kNewerImage;
    case Misfit::Kind::missing: return " (hint: the site can add it to fallback_libraries)";
    case Misfit::Kind::version: return " (hint: the site can add its own to fabric_libraries)";
    default: return "";
  }
}

Result<HostLibrary> read_fabric_library(const HookContext& context, const std::string& path,
                                        bool fallback) {
  const bool of_ucx = is_of_ucx(std::string_view(path).substr(path.rfind('/') + 1));
  auto library = SPC_TRY(HostLibrary::read(context.host_root, path, of_ucx ? kFunctionsOfUcx : ""));
  library.fallback = fallback;
  return library;
}

std::vector<OfferedLibrary> offer_fabric_libraries(const HookContext& context, Edits& edits) {
  std::vector<OfferedLibrary> offered;
  const auto offer = [&](const char* key, const std::string& path, bool fallback) {
    auto library = read_fabric_library(context, path, fallback);
    if (!library) {
      edits.warnings.push_back(formatted("{}: {}", key, library.error().message()));
      return;
    }
    const std::string target = (fallback ? kFallbacks : kPlace) + path.substr(path.rfind('/') + 1);
    MountEdit mount;
    mount.source = path;
    mount.target = target;
    edits.mounts.push_back(std::move(mount));
    offered.push_back({path, *std::move(library), target});
  };
  for (const std::string& path : context.settings_of("fabric_libraries"))
    offer("fabric_libraries", path, false);
  if (offered.empty()) return offered;
  for (const std::string& path : context.settings_of("fallback_libraries"))
    offer("fallback_libraries", path, true);
  std::vector<HostLibrary> libraries;
  for (const OfferedLibrary& one : offered) libraries.push_back(one.library);
  if (const std::string clash = clash_of(libraries); !clash.empty())
    edits.refusal = "fabric_libraries: " + clash;
  return offered;
}

std::vector<std::string> give_fabric_libraries(const HookContext& context,
                                               const std::vector<OfferedLibrary>& offered,
                                               Edits& edits) {
  if (offered.empty()) return {};
  const bool elsewhere = context.has_bind_mounts || !context.settings_of("mounts").empty();
  LibraryFit fit(context, "fabric_libraries", elsewhere, true);
  std::vector<std::string> warnings;
  const auto chosen = choose_for_fabric(offered, fit, edits.notes, warnings);
  std::vector<std::string> providers;
  for (const auto& [path, library, target] : offered) {
    if (!chosen.contains(target)) {
      for (MountEdit& mount : edits.mounts) {
        if (mount.target == target) mount.target.clear();
      }
      continue;
    }
    const std::string name = target.substr(target.rfind('/') + 1);
    const bool before = !library.fallback;
    edits.libraries.push_back(
        {.soname = name, .path = target, .before = before, .machine = library.machine});
    if (library.soname != name)
      edits.libraries.push_back(
          {.soname = library.soname, .path = target, .before = before, .machine = library.machine});
    if (const std::string provider = provider_of_file(name); !provider.empty())
      providers.push_back(provider);
    edits.notes.push_back(formatted("the node's {} is mounted", path));
  }
  name_providers(providers, edits);
  prefer_fabric_libraries(context, edits);
  return warnings;
}

LibrariesInside::LibrariesInside(const HookContext& context, const Edits& edits)
    : context_(context), edits_(edits) {
  if (auto cache = context.image_file("/etc/ld.so.cache", kLargestCache))
    cache_ = *std::move(cache);
}

bool LibrariesInside::image_has(const std::string& soname) const {
  if (cache_.find('\0' + soname + '\0') != std::string::npos ||
      cache_.find('/' + soname + '\0') != std::string::npos)
    return true;
  auto directories = default_library_directories(own_machine());
  directories.insert(directories.end(), kUsualPlaces.begin(), kUsualPlaces.end());
  const std::string* listed = context_.of_image("LD_LIBRARY_PATH");
  auto more = parts_of(listed == nullptr ? "" : *listed, ':');
  more.resize(std::min(more.size(), kMostSearched));
  std::ranges::move(more, std::back_inserter(directories));
  return std::ranges::any_of(directories, [&](const std::string& directory) {
    return context_.open_in_image &&
           context_.open_in_image((directory + "/" + soname).c_str(), O_RDONLY);
  });
}

bool LibrariesInside::have(const std::string& soname) const {
  const auto is_it = [&](const LibraryEdit& library) { return library.soname == soname; };
  return std::ranges::any_of(edits_.libraries, is_it) || image_has(soname);
}

bool LibrariesInside::have_provider(const std::string& provider) const {
  const std::string path = driver_file(provider);
  if (std::ranges::any_of(edits_.files, [&](const FileEdit& file) { return file.path == path; }))
    return true;
  if (!context_.open_in_image || !context_.open_in_image(path.c_str(), O_RDONLY)) return false;
  // A slim image may have the provider's file without the library. A library in another directory
  // cannot be checked.
  bool seen = false;
  const std::string begins = formatted("lib{}-rdmav", provider);
  for (const std::string& directory : default_library_directories(own_machine())) {
    DirectoryReader entries(
        context_.open_in_image((directory + "/libibverbs").c_str(), O_RDONLY | O_DIRECTORY));
    while (entries.next()) {
      seen = true;
      if (entries.name().starts_with(begins)) return true;
    }
  }
  return !seen;
}

bool LibrariesInside::can_talk() const {
  for (const char* name : {"NCCL_VERSION", "PYTORCH_VERSION", "OPENMPI_VERSION", "OMPI_VERSION"}) {
    if (context_.of_image(name) != nullptr) return true;
  }
  const auto has = [&](const char* soname) { return image_has(soname); };
  return std::ranges::any_of(std::vector{"libnccl.so.2", "libmpi.so.40", "libmpi.so.12",
                                         "libucp.so.0", "libfabric.so.1", "libpsm2.so.2"},
                             has);
}

bool LibrariesInside::uses_nccl() const {
  return context_.of_image("NCCL_VERSION") != nullptr ||
         context_.of_image("PYTORCH_VERSION") != nullptr || image_has("libnccl.so.2") ||
         image_has("librccl.so.1");
}

}  // namespace spc
