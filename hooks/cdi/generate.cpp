#include "hooks/cdi/generate.hpp"

#include <algorithm>
#include <set>

namespace spc {
namespace {

constexpr char kHook[] = "/usr/bin/nvidia-cdi-hook";

CdiHook hook(std::string verb, std::vector<std::string> arguments) {
  CdiHook made{.stage = "createContainer",
               .path = kHook,
               .args = {"nvidia-cdi-hook", std::move(verb)},
               .env = {},
               .timeout = {}};
  made.args.insert(made.args.end(), arguments.begin(), arguments.end());
  return made;
}

/// Where it lies for programs: a driver in a place of its own is laid out like the node.
std::string inside(const std::string& path, const std::string& driver_root) {
  std::string root = driver_root;
  while (root.ends_with('/')) root.pop_back();
  if (root.empty() || !path.starts_with(root + "/")) return path;
  const std::string rest = path.substr(root.size());
  return rest.starts_with("/usr/") || rest.starts_with("/lib") ? rest : path;
}

CdiMount mount(const std::string& source, const std::string& target, bool socket = false) {
  CdiMount made{.host_path = source,
                .container_path = target,
                .options = {"nosuid", "nodev", "rbind", "rprivate"},
                .type = {}};
  if (socket) {
    made.options.emplace_back("noexec");
  } else {
    made.options.insert(made.options.begin(), "ro");
  }
  return made;
}

void add_node(CdiEdits& edits, const std::string& path) {
  edits.device_nodes.push_back({.path = path, .host_path = {}});
}

CdiEdits edits_of(const NvidiaGpu& gpu) {
  CdiEdits edits;
  add_node(edits, gpu.node);
  for (const std::string& node : gpu.dri) add_node(edits, node);
  return edits;
}

CdiEdits edits_of(const NvidiaGpu& gpu, const NvidiaMig& part) {
  CdiEdits edits;
  for (const std::string* node : {&gpu.node, &part.gpu_instance_node, &part.compute_instance_node})
    add_node(edits, *node);
  return edits;
}

/// Names that programs open, and that no soname stands for: pkg/nvcdi of nvidia-container-toolkit.
std::vector<std::string> links_of(const NvidiaLibrary& library, const std::string& directory) {
  const std::string stem = library.file.substr(0, library.file.find(".so"));
  const auto link = [&](const std::string& target, const std::string& name) {
    return std::vector<std::string>{"--link", target + "::" + directory + "/" + name};
  };
  if (stem == "libcuda") return link("libcuda.so.1", "libcuda.so");
  if (stem == "libnvidia-opticalflow")
    return link("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so");
  if (stem == "libGLX_nvidia") return link(library.file, "libGLX_indirect.so.0");
  if (stem == "libnvidia-vulkan-producer")
    return link(library.file, "libnvidia-vulkan-producer.so");
  if (library.folder == "vdpau")
    return link(library.file, stem + ".so.1");  // libvdpau opens it by this name
  if (stem == "libnvidia-allocator")
    return link("../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so");
  return {};
}

void add_libraries(CdiEdits& edits, const NvidiaDriver& driver, const std::string& driver_root) {
  std::vector<std::string> links;
  std::vector<std::string> folders;
  for (const NvidiaLibrary& library : driver.libraries) {
    if (library.is_32_bit) continue;  // as in nvidia-ctk's files
    const std::string target = inside(library.path, driver_root);
    const std::string directory = target.substr(0, target.rfind('/'));
    edits.mounts.push_back(mount(library.path, target));
    for (std::string& word : links_of(library, directory)) links.push_back(std::move(word));
    if (!library.soname.empty() &&
        std::find(folders.begin(), folders.end(), directory) == folders.end())
      folders.push_back(directory);
  }
  if (!links.empty()) edits.hooks.push_back(hook("create-symlinks", links));
  edits.hooks.push_back(hook("enable-cuda-compat", {"--host-driver-version=" + driver.version}));
  if (folders.empty()) return;
  std::vector<std::string> words;
  for (const std::string& folder : folders) words.insert(words.end(), {"--folder", folder});
  edits.hooks.push_back(hook("update-ldcache", words));
}

}  // namespace

CdiSpec nvidia_cdi_spec(const NvidiaDriver& driver, const std::string& driver_root) {
  CdiSpec spec{.version = "0.5.0", .kind = "nvidia.com/gpu", .devices = {}, .edits = {}};
  spec.edits.env.emplace_back(
      "NVIDIA_VISIBLE_DEVICES=void");  // another runtime's hook shall not do it once more
  for (const NvidiaFile& node : driver.control_nodes) add_node(spec.edits, node.path);
  add_libraries(spec.edits, driver, driver_root);
  for (const auto* files : {&driver.binaries, &driver.firmware, &driver.config_files}) {
    for (const NvidiaFile& file : *files)
      spec.edits.mounts.push_back(mount(file.path, file.target));
  }
  for (const NvidiaFile& socket : driver.sockets)
    spec.edits.mounts.push_back(mount(socket.path, socket.target, true));
  spec.edits.hooks.push_back(hook("disable-device-node-modification", {}));

  CdiEdits all;
  for (std::size_t i = 0; i < driver.gpus.size(); ++i) {
    const NvidiaGpu& gpu = driver.gpus[i];
    const std::string number = std::to_string(i);
    for (std::size_t part = 0; part < gpu.migs.size(); ++part) {
      spec.devices.push_back({number + ":" + std::to_string(part), edits_of(gpu, gpu.migs[part])});
      all.append(spec.devices.back().edits);
    }
    if (!gpu.migs.empty()) continue;  // there is nothing to compute with but the parts
    spec.devices.push_back({number, edits_of(gpu)});
    if (!gpu.uuid.empty()) spec.devices.push_back({gpu.uuid, edits_of(gpu)});
    all.append(spec.devices.back().edits);
  }
  if (!spec.devices.empty()) spec.devices.push_back({"all", std::move(all)});
  return spec;
}

}  // namespace spc
